package carriers

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/shm"
	"lockstep/spmd/internal/transport"
)

// AwareBackend is an MPI that takes device memory.
var AwareBackend transport.Backend = awareBackend{}

type awareBackend struct{}

var _ transport.Backend = (*awareBackend)(nil)

func (awareBackend) Name() string { return "mpi-aware" }

func (awareBackend) Probe(h transport.Host) error {
	_, err := CommOf(h)
	return err
}

func (awareBackend) Joins() bool { return false }

// AwareSizes are bytes, the same on all ranks. Only tests change them.
var AwareSizes = struct {
	Direct int // the least of a collective that MPI is given device addresses for: below, copies are faster
	Room   int // of scratch memory
}{128 << 10, 32 << 20}

// Aware is an MPI that takes device memory of cuda.Malloc. MPI knows no streams: whoever issues a
// call waits for the stream and makes the call.
type Aware struct {
	host     transport.Host
	c        *shm.NodeComm
	dev      *cuda.Device
	short    *Staged
	said     cudampi.Aware
	caps     transport.Caps
	messages cudampi.P2P // of the program
	steps    cudampi.P2P // that collectives are made of
	fold     *peer.Module
	scratch  unsafe.Pointer // in pieces of stride bytes: what each rank sent, and a result
	stride   int
	table    unsafe.Pointer // the addresses of what the ranks sent, for folding
	tabled   unsafe.Pointer // where the table is made up
}

func (awareBackend) Open(at transport.Site) (transport.Opened, error) {
	c, err := CommOf(at.Host)
	if err != nil {
		return nil, err
	}
	t := &Aware{host: at.Host, c: c, dev: at.Dev}
	t.steps.Stream = cudampi.Steps
	if t.said, err = c.AwareOnAll(); err != nil {
		return nil, err
	}
	if err := c.FirstFailure(t.alloc(at)); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if t.fold, err = peer.Load(c, at.Dev, peer.FoldSource); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.caps = *t.short.Caps()
	t.caps.Blocks, t.caps.NoGraph = true, fmt.Errorf("collectives through %s cannot be captured", t.Name())
	return t, nil
}

func (t *Aware) alloc(at transport.Site) (err error) {
	if t.short, err = OpenStaged(at); err != nil {
		return err
	}
	size := t.c.Size()
	if t.scratch, err = t.dev.Malloc(AwareSizes.Room); err != nil {
		return err
	}
	if t.table, err = t.dev.Malloc(8 * size); err != nil {
		return err
	}
	if t.tabled, err = t.dev.MallocHost(8 * size); err != nil {
		return err
	}
	t.stride = AwareSizes.Room / (size + 1) / 256 * 256
	for r := range size {
		unsafe.Slice((*unsafe.Pointer)(t.tabled), size)[r] = t.slot(r)
	}
	s, err := t.dev.NewStream(0)
	if err != nil {
		return err
	}
	return errors.Join(s.Copy(t.table, t.tabled, 8*size), s.Synchronize(), s.Close())
}

// slot returns the scratch memory for what a rank sent.
func (t *Aware) slot(rank int) unsafe.Pointer { return unsafe.Add(t.scratch, rank*t.stride) }

var _ transport.Transport = (*Aware)(nil)

func (t *Aware) Name() string { return AwareBackend.Name() }

func (t *Aware) Caps() *transport.Caps { return &t.caps }

func (t *Aware) Scratch(int) int { return 0 }

func (t *Aware) Do(q transport.Issuer, c coll.Call) error {
	if c.Kind.Traits().Message {
		return t.Group(q, []coll.Call{c}, nil)
	}
	c.Counts, c.RecvCounts = slices.Clone(c.Counts), slices.Clone(c.RecvCounts)
	return t.hand(q, func(s *cuda.Stream) error { return t.make(s, &c) })
}

func (t *Aware) Group(q transport.Issuer, cs []coll.Call, _ unsafe.Pointer) error {
	if len(cs) == 0 {
		return nil
	}
	list := transport.AppendMessages(nil, cs)
	return t.hand(q, func(s *cuda.Stream) error {
		if err := t.passed(s); err != nil {
			return err
		}
		for i := range list {
			m, err := &list[i], error(nil)
			if m.Kind == coll.Send {
				err = t.messages.Send(t.c.Comm, m.Src, m.N, m.Type, int(m.Root))
			} else {
				err = t.messages.Recv(t.c.Comm, m.Dst, m.N, m.Type, int(m.Root))
			}
			if err != nil {
				return err
			}
		}
		return t.messages.Wait()
	})
}

// hand has run make a call at once. No stream may wait for it. At the first use of an allocation
// the library shares it between processes, by calls that may wait for all streams of the device.
// Source: Open MPI 4.1, common_cuda.c.
func (t *Aware) hand(q transport.Issuer, run func(s *cuda.Stream) error) error {
	return q.Hand(transport.HostJob{
		By: t.Name(),
		Hold: func() error {
			return errors.New("an MPI that takes device memory may wait for the stream that is held")
		},
		Run:     func() error { return run(q.Stream()) },
		Release: func() error { return nil },
	})
}

// passed waits until the device has come to the end of s.
func (t *Aware) passed(s *cuda.Stream) error { return transport.Wait(t.host, s.Query) }

var _ transport.Opened = (*Aware)(nil)

func (t *Aware) Why() (why string, doubtful bool, err error) {
	return t.said.Reason, !t.said.Yes, nil
}

func (t *Aware) Linked() bool { return false }

func (t *Aware) Peers() *peer.Clique { return nil }

// Close implements transport.Opened. It waits for nobody.
func (t *Aware) Close() error {
	err := errors.Join(t.fold.Close(), t.dev.Free(t.scratch), t.dev.Free(t.table), t.dev.FreeHost(t.tabled))
	if t.short != nil {
		err = errors.Join(err, t.short.Close())
	}
	t.fold, t.scratch, t.table, t.tabled, t.short = nil, nil, nil, nil, nil
	return err
}
