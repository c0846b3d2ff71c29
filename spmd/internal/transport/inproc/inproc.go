// Package inproc carries calls between ranks that are goroutines of one process: without MPI, over plain memory. A job of
// several ranks starts and ends in microseconds.
package inproc

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// job is what the ranks share. Its lock is held for the copy of a message, and never while a rank waits or computes.
type job struct {
	mu      sync.Mutex
	changed sync.Cond
	calls   []coll.Call // that the ranks have brought to the meeting at hand
	came    int
	meeting uint64       // counts them
	boxes   [][]*message // those from rank f to rank t at f*size+t, in their order
	spare   []*message
	gone    []bool // ranks that have returned
	err     error  // that ends the job
}

// message is one that has been sent and not been received: a copy, so that its sender goes on, and a group may receive where
// it sends from.
type message struct{ data []byte }

// Comm is one rank's end. It is a transport.Transport, and as control.Comm is. It is used by one goroutine at a time.
type Comm struct {
	job        *job
	rank, size int
	result     []byte    // of a reduction, while others still read this rank's operands
	sources    []uintptr // of it
	group      []coll.Call
}

// Run runs fn on each of n ranks and returns when all have returned: the error of the first rank that failed, with its
// number. When one fails, panics or returns too early, those that wait for it get an error. A panic goes on in this goroutine.
func Run(n int, fn func(c *Comm) error) error {
	j := &job{calls: make([]coll.Call, n), boxes: make([][]*message, n*n), gone: make([]bool, n)}
	j.changed.L = &j.mu
	var wait sync.WaitGroup
	panics := make(chan any, n)
	for i := range n {
		wait.Go(func() {
			err := errors.New("has ended its goroutine")
			defer func() {
				if p := recover(); p != nil {
					panics <- p
					err = fmt.Errorf("panic: %v", p)
				}
				j.leave(i, err)
			}()
			err = fn(&Comm{job: j, rank: i, size: n, sources: make([]uintptr, n)})
		})
	}
	wait.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
		return j.err
	}
}

// leave has the others know that a rank has returned, and why.
func (j *job) leave(rank int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone[rank] = true
	if err != nil && j.err == nil {
		j.err = fmt.Errorf("rank %d: %w", rank, err)
	}
	j.changed.Broadcast()
}

// wait waits until there is what a rank waits for, or nobody is left who could bring it. The caller has the lock.
func (j *job) wait(there func() bool, needs func(rank int) bool) error {
	for !there() {
		if j.err != nil {
			return j.err
		}
		for r, gone := range j.gone {
			if gone && needs(r) {
				j.err = fmt.Errorf("rank %d has returned, and another rank waits for it", r)
				j.changed.Broadcast()
				return j.err
			}
		}
		j.changed.Wait()
	}
	return nil
}

// meet brings a call and waits until all ranks have brought theirs.
func (r *Comm) meet(c coll.Call) error {
	j := r.job
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.meeting
	j.calls[r.rank] = c
	if j.came++; j.came == r.size {
		j.came = 0
		j.meeting++
		j.changed.Broadcast()
		return nil
	}
	return j.wait(func() bool { return j.meeting != now }, func(int) bool { return true })
}

// Rank returns this rank's number.
func (r *Comm) Rank() int { return r.rank }

// Size returns the number of ranks.
func (r *Comm) Size() int { return r.size }

var (
	// native are the calls that the others of kinds are made of.
	native = coll.Library{Kinds: coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.Barrier, coll.Send, coll.Recv)}

	kinds = native.Kinds | coll.SetOf(coll.AllGather, coll.ReduceScatter, coll.AllToAll, coll.Gather, coll.Scatter, coll.AllGatherV,
		coll.ReduceScatterV, coll.GatherV, coll.ScatterV, coll.AllToAllV, coll.SendRecv)

	caps = transport.Caps{Library: coll.Library{Kinds: kinds}, Host: true, Ordered: true}
)

// Name implements transport.Transport.
func (r *Comm) Name() string { return "inproc" }

// Caps implements transport.Transport.
func (r *Comm) Caps() *transport.Caps { return &caps }

// Scratch implements transport.Transport.
func (r *Comm) Scratch(int) int { return 0 }

// Do implements transport.Transport. Collectives that are not native are done as such, one after the other, and then as messages.
func (r *Comm) Do(_ transport.Queue, c coll.Call) (err error) {
	r.group = r.group[:0]
	c.Steps(r.rank, r.size, &native, nil, func(s coll.Call) bool {
		switch s.Kind {
		case coll.Send, coll.Recv:
			r.group = append(r.group, s)
		default:
			err = r.together(s)
		}
		return err == nil
	})
	if err != nil || len(r.group) == 0 {
		return err
	}
	return r.exchange(r.group)
}

// Group implements transport.Transport.
func (r *Comm) Group(_ transport.Queue, cs []coll.Call, _ unsafe.Pointer) error {
	r.group = r.group[:0]
	for i := range cs {
		cs[i].Messages(func(m coll.Call) bool {
			r.group = append(r.group, m)
			return true
		})
	}
	return r.exchange(r.group)
}

// together does a collective: all bring their calls, each computes its result from the operands of all, and when all have
// it, it goes where the call wants it, which may be where operands lay.
func (r *Comm) together(c coll.Call) error {
	if err := r.meet(c); err != nil {
		return err
	}
	failure := r.differs(&c)
	root := int(c.Root) == r.rank
	gets := c.Kind == coll.AllReduce || c.Kind == coll.Reduce && root || c.Kind == coll.Broadcast && (!root || c.Src != nil)
	bytes := c.N * c.Type.Size()
	if gets = gets && failure == nil && bytes > 0; gets {
		r.compute(&c, bytes)
	}
	if err := r.meet(c); err != nil {
		return err
	}
	if gets {
		move(c.Dst, unsafe.Pointer(&r.result[0]), bytes)
	}
	return failure
}

// compute sets result to that of a call.
func (r *Comm) compute(c *coll.Call, bytes int) {
	if len(r.result) < bytes {
		r.result = make([]byte, bytes)
	}
	to := unsafe.Pointer(&r.result[0])
	if c.Kind == coll.Broadcast {
		root := &r.job.calls[c.Root]
		from := root.Src
		if from == nil {
			from = root.Dst
		}
		move(to, from, bytes)
		return
	}
	if r.size == 1 {
		move(to, c.Src, bytes)
		return
	}
	for i := range r.job.calls {
		r.sources[i] = uintptr(r.job.calls[i].Src) // which calls keeps
	}
	shm.Reduce(to, r.sources, c.N, c.Type, c.Op)
}

// differs is an error where a rank has brought another call than this one.
func (r *Comm) differs(c *coll.Call) error {
	for i := range r.job.calls {
		o := &r.job.calls[i]
		if o.Kind != c.Kind || o.Type != c.Type || o.Op != c.Op || o.Root != c.Root || o.N != c.N {
			return fmt.Errorf("%s here, but rank %d brought %s", c.String(), i, o.String())
		}
	}
	return nil
}

// exchange does messages: all that are sent are on their way before one is waited for.
func (r *Comm) exchange(messages []coll.Call) error {
	j := r.job
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range messages {
		if c := &messages[i]; c.Kind == coll.Send {
			m := j.newMessage()
			m.data = append(m.data[:0], bytesAt(c.Src, c.N*c.Type.Size())...)
			box := &j.boxes[r.rank*r.size+int(c.Root)]
			*box = append(*box, m)
		}
	}
	j.changed.Broadcast()
	var failure error
	for i := range messages {
		if c := &messages[i]; c.Kind == coll.Recv {
			if err := r.receive(c); err != nil && failure == nil {
				failure = err
			}
		}
	}
	return failure
}

func (j *job) newMessage() *message {
	if n := len(j.spare); n > 0 {
		m := j.spare[n-1]
		j.spare = j.spare[:n-1]
		return m
	}
	return &message{}
}

// receive takes the next message from a rank. The caller has the lock.
func (r *Comm) receive(c *coll.Call) error {
	j, from := r.job, int(c.Root)
	box := &j.boxes[from*r.size+r.rank]
	if len(*box) == 0 {
		if err := j.wait(func() bool { return len(*box) > 0 }, func(rank int) bool { return rank == from }); err != nil {
			return err
		}
	}
	m := (*box)[0]
	*box = slices.Delete(*box, 0, 1)
	j.spare = append(j.spare, m)
	if want := c.N * c.Type.Size(); len(m.data) != want {
		return fmt.Errorf("message from rank %d has %d bytes, %d (%d %v elements) expected", from, len(m.data), want, c.N, c.Type)
	}
	copy(bytesAt(c.Dst, len(m.data)), m.data)
	return nil
}

// AllReduce is cudampi.Comm.AllReduce.
func (r *Comm) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return r.Do(nil, coll.Call{Kind: coll.AllReduce, Dst: dst, Src: src, N: n, Type: t, Op: op})
}

// Broadcast is cudampi.Comm.Broadcast.
func (r *Comm) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return r.Do(nil, coll.Call{Kind: coll.Broadcast, Dst: buf, N: n, Type: t, Root: int32(root)})
}

// AllGather is cudampi.Comm.AllGather.
func (r *Comm) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return r.Do(nil, coll.Call{Kind: coll.AllGather, Dst: dst, Src: src, N: n, Type: t})
}

// AllGatherV is cudampi.Comm.AllGatherV.
func (r *Comm) AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return r.Do(nil, coll.Call{Kind: coll.AllGatherV, Dst: dst, Src: src, Counts: counts, Type: t})
}

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// move copies bytes unless they are in their place already.
func move(dst, src unsafe.Pointer, bytes int) {
	if bytes > 0 && dst != src {
		copy(bytesAt(dst, bytes), bytesAt(src, bytes))
	}
}
