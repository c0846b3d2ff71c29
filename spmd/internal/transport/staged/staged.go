// Package staged carries calls on device memory through host memory, by the communicator that the ranks have there in any
// case. It needs neither MPI nor NCCL, and several ranks may share a GPU.
package staged

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/peer"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// Backend is host memory as the way between GPUs.
var Backend transport.Backend = backend{}

type backend struct{}

// Name implements transport.Backend.
func (backend) Name() string { return "host-staged" }

// Probe implements transport.Backend. Host memory there always is.
func (backend) Probe(transport.Host) error { return nil }

// Joins implements transport.Backend.
func (backend) Joins() bool { return false }

// Open implements transport.Backend.
func (backend) Open(at transport.Site) (transport.Opened, error) {
	t := &Transport{host: at.Host, dev: at.Dev}
	library := coll.Library{Kinds: at.Host.Caps().Kinds &^ coll.SetOf(coll.SendRecv)}
	t.caps = transport.Caps{Library: library, Ordered: true, Hands: true, Now: true,
		NoGraph: fmt.Errorf("collectives through %s cannot be captured", Backend.Name())}
	var err error
	if t.pinned, err = at.Dev.MallocHost(signalBytes + 2*pinnedBytes); err != nil {
		return nil, err
	}
	*(*uint32)(t.pinned) = 0
	t.from = area{p: unsafe.Add(t.pinned, signalBytes), size: pinnedBytes}
	t.to = area{p: unsafe.Add(t.pinned, signalBytes+pinnedBytes), size: pinnedBytes}
	if t.copies, err = at.Dev.NewStream(0); err != nil {
		return nil, errors.Join(err, at.Dev.FreeHost(t.pinned))
	}
	return t, nil
}

const (
	signalBytes = 64
	pinnedBytes = 1 << 20 // of each area
)

// Transport is a communicator in host memory that carries device memory. A call waits for its stream, copies what it reads
// to the host, is made there, and copies what it has written back.
type Transport struct {
	host   transport.Host
	dev    *cuda.Device
	caps   transport.Caps
	copies *cuda.Stream
	from   area // of operands
	to     area // of results
	calls  []coll.Call
	pinned unsafe.Pointer // memory; at first comes a word that held streams wait for

	mu    sync.Mutex // of what follows, since streams are held beside a call
	turn  uint32     // of the last that is held
	spare []*cuda.Event
}

// area is memory for copies: pinned, and for long calls memory of Go's, since to pin more the driver might wait for streams
// that wait for this very call.
type area struct {
	p    unsafe.Pointer
	size int
	long []uint64
}

// piece is the most bytes of an all-reduce, a reduce or a broadcast that are on the host at a time.
const piece = 8 << 20

// Name implements transport.Transport.
func (t *Transport) Name() string { return Backend.Name() }

// Caps implements transport.Transport.
func (t *Transport) Caps() *transport.Caps { return &t.caps }

// Scratch implements transport.Transport.
func (t *Transport) Scratch(int) int { return 0 }

// Do implements transport.Transport.
func (t *Transport) Do(q transport.Queue, c coll.Call) error {
	c.Counts, c.RecvCounts = slices.Clone(c.Counts), slices.Clone(c.RecvCounts)
	return t.hand(q, func(s *cuda.Stream) error { return t.make(s, &c) })
}

// Group implements transport.Transport.
func (t *Transport) Group(q transport.Queue, cs []coll.Call, _ unsafe.Pointer) error {
	if len(cs) == 0 {
		return nil
	}
	list := transport.AppendMessages(nil, cs)
	return t.hand(q, func(s *cuda.Stream) error { return t.exchange(s, list) })
}

// hand has run make a call when q has got there. It is given a stream for its copies.
func (t *Transport) hand(q transport.Queue, run func(s *cuda.Stream) error) error {
	s, held := q.Stream(), hold{}
	return q.Hand(transport.Job{
		By:   t.Name(),
		Hold: func() (err error) { held, err = t.hold(s); return err },
		Run: func() error {
			if held.ready == nil {
				return run(s)
			}
			err := t.copies.Wait(held.ready)
			if err == nil {
				err = run(t.copies)
			}
			return errors.Join(err, t.release(held))
		},
		Release: func() error { return t.release(held) },
	})
}

// hold is a stream that waits for a call.
type hold struct {
	ready *cuda.Event // of what comes before it
	turn  uint32
}

func (t *Transport) hold(s *cuda.Stream) (h hold, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var e *cuda.Event
	if n := len(t.spare); n > 0 {
		e, t.spare = t.spare[n-1], t.spare[:n-1]
	} else if e, err = t.dev.NewEvent(false); err != nil {
		return h, err
	}
	if err = e.Record(s); err == nil {
		err = s.WaitValue(t.pinned, t.turn+1)
	}
	if err != nil {
		t.spare = append(t.spare, e)
		return h, err
	}
	t.turn++
	return hold{e, t.turn}, nil
}

// release lets a stream go on, behind the copies of its call.
func (t *Transport) release(h hold) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare = append(t.spare, h.ready)
	return t.copies.WriteValue(t.pinned, h.turn)
}

// room is where an area has so many bytes.
func (a *area) room(bytes int) unsafe.Pointer {
	if bytes <= a.size {
		return a.p
	}
	if words := (bytes + 7) / 8; len(a.long) < words {
		a.long = make([]uint64, words)
	}
	return unsafe.Pointer(&a.long[0])
}

// make makes a collective, or a message, with copies on s, for which it waits.
func (t *Transport) make(s *cuda.Stream, c *coll.Call) error {
	if c.Kind.Traits().Message {
		return t.exchange(s, []coll.Call{*c})
	}
	switch c.Kind {
	case coll.AllReduce, coll.Reduce, coll.Broadcast:
	default:
		return t.whole(s, c)
	}
	each, size := piece/c.Type.Size(), c.Type.Size()
	for lo := 0; lo == 0 || lo < c.N; lo += each {
		part := *c
		part.N = min(each, c.N-lo)
		part.Dst = unsafe.Add(c.Dst, lo*size)
		if c.Src != nil {
			part.Src = unsafe.Add(c.Src, lo*size)
		}
		if err := t.whole(s, &part); err != nil {
			return err
		}
	}
	return nil
}

// whole makes a collective at once.
func (t *Transport) whole(s *cuda.Stream, c *coll.Call) error {
	if c.Kind == coll.Barrier {
		if err := t.host.WaitStream(s); err != nil {
			return err
		}
		return t.host.Make(c)
	}
	rank, size := t.host.Rank(), c.Type.Size()
	writes, reads := c.Extents(rank, t.host.Size())
	on := *c
	on.Dst, on.Src = t.to.room(writes*size), nil
	if c.Kind == coll.Broadcast {
		if rank == int(c.Root) {
			from := c.Src
			if from == nil {
				from = c.Dst
			}
			if writes > 0 {
				if err := s.Copy(on.Dst, from, writes*size); err != nil {
					return err
				}
			}
			if from == c.Dst {
				writes = 0
			}
		}
	} else if on.Src = t.from.room(reads * size); reads > 0 {
		if err := s.Copy(on.Src, c.Src, reads*size); err != nil {
			return err
		}
	}
	if err := t.host.WaitStream(s); err != nil {
		return err
	}
	if err := t.host.Make(&on); err != nil {
		return err
	}
	if writes > 0 {
		if err := s.Copy(c.Dst, on.Dst, writes*size); err != nil {
			return err
		}
	}
	return t.host.WaitStream(s) // the next call uses the memory
}

// exchange makes messages that start together.
func (t *Transport) exchange(s *cuda.Stream, list []coll.Call) error {
	out, in := 0, 0
	for i := range list {
		if n := list[i].N * list[i].Type.Size(); list[i].Kind == coll.Send {
			out += n
		} else {
			in += n
		}
	}
	from, to := t.from.room(out), t.to.room(in)
	out, in = 0, 0
	t.calls = t.calls[:0]
	for _, m := range list {
		n := m.N * m.Type.Size()
		if m.Kind == coll.Send {
			src := elem.At(from, out, n, elem.Uint8)
			if n > 0 {
				if err := s.Copy(src, m.Src, n); err != nil {
					return err
				}
			}
			m.Src, out = src, out+n
		} else {
			m.Dst, in = elem.At(to, in, n, elem.Uint8), in+n
		}
		t.calls = append(t.calls, m)
	}
	if err := t.host.WaitStream(s); err != nil {
		return err
	}
	if err := t.host.Group(nil, t.calls, nil); err != nil {
		return err
	}
	for i, m := range list {
		if n := m.N * m.Type.Size(); m.Kind == coll.Recv && n > 0 {
			if err := s.Copy(m.Dst, t.calls[i].Dst, n); err != nil {
				return err
			}
		}
	}
	return t.host.WaitStream(s)
}

// Why implements transport.Opened.
func (t *Transport) Why() (why string, doubtful bool, err error) {
	return "copies through host memory", false, nil
}

// Linked implements transport.Opened.
func (t *Transport) Linked() bool { return false }

// Peers implements transport.Opened.
func (t *Transport) Peers() *peer.Comm { return nil }

// Close implements transport.Opened. It waits for nobody.
func (t *Transport) Close() error {
	if t.copies == nil {
		return nil
	}
	err := errors.Join(t.copies.Synchronize(), t.copies.Close())
	for _, e := range t.spare {
		err = errors.Join(err, e.Close())
	}
	err = errors.Join(err, t.dev.FreeHost(t.pinned))
	t.copies, t.spare, t.pinned = nil, nil, nil
	return err
}
