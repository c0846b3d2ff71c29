package carriers

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/shm"
	"lockstep/spmd/internal/transport"
)

// MPI is MPI on host memory. Its calls are made in their turn in MPI.
type MPI struct {
	*shm.NodeComm
	messages shm.P2P
	slow     error // why small calls do not go through memory
}

// NewMPI returns the transport of a communicator.
func NewMPI(c *shm.NodeComm) *MPI { return &MPI{NodeComm: c} }

// MPIKinds are the calls that MPI has itself.
const MPIKinds coll.Set = 1<<coll.AllReduce | 1<<coll.Reduce | 1<<coll.Broadcast | 1<<coll.AllGather | 1<<
	coll.ReduceScatter | 1<<coll.AllToAll |
	1<<coll.Gather | 1<<coll.Scatter | 1<<coll.AllGatherV | 1<<coll.ReduceScatterV | 1<<coll.GatherV | 1<<
	coll.ScatterV | 1<<coll.AllToAllV |
	1<<coll.Scan | 1<<coll.ExScan | 1<<coll.Send | 1<<coll.Recv | 1<<coll.SendRecv | 1<<coll.Barrier

var mpiCaps = transport.Caps{Library: coll.Library{Kinds: MPIKinds}, Host: true, Ordered: true}

var _ transport.Transport = (*MPI)(nil)

func (t *MPI) Name() string { return "mpi-host" }

func (t *MPI) Caps() *transport.Caps { return &mpiCaps }

func (t *MPI) Scratch(int) int { return 0 }

func (t *MPI) Do(_ transport.Issuer, c coll.Call) error { return t.Make(&c) }

var _ transport.Host = (*MPI)(nil)

func (t *MPI) Make(c *coll.Call) error {
	if done, err := t.NodeComm.Carry(c); done || err != nil {
		return err
	}
	m, root := t.NodeComm.Comm, int(c.Root)
	switch c.Kind {
	case coll.AllReduce:
		return m.AllReduce(c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.Reduce:
		return m.Reduce(c.Dst, c.Src, c.N, c.Type, c.Op, root)
	case coll.Scan:
		return m.Scan(c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.ExScan:
		return m.ExScan(c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.Broadcast:
		return m.Broadcast(c.Dst, c.N, c.Type, root)
	case coll.AllGather:
		return m.AllGather(c.Dst, c.Src, c.N, c.Type)
	case coll.ReduceScatter:
		return m.ReduceScatter(c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.AllToAll:
		return m.AllToAll(c.Dst, c.Src, c.N, c.Type)
	case coll.Gather:
		return m.Gather(c.Dst, c.Src, c.N, c.Type, root)
	case coll.Scatter:
		return m.Scatter(c.Dst, c.Src, c.N, c.Type, root)
	case coll.AllGatherV:
		return m.AllGatherV(c.Dst, c.Src, c.Counts, c.Type)
	case coll.ReduceScatterV:
		return m.ReduceScatterV(c.Dst, c.Src, c.Counts, c.Type, c.Op)
	case coll.GatherV:
		return m.GatherV(c.Dst, c.Src, c.Counts, c.Type, root)
	case coll.ScatterV:
		return m.ScatterV(c.Dst, c.Src, c.Counts, c.Type, root)
	case coll.AllToAllV:
		return m.AllToAllV(c.Dst, c.RecvCounts, c.Src, c.Counts, c.Type)
	case coll.Send:
		return t.Send(c.Src, c.N, c.Type, root)
	case coll.Recv:
		return t.Recv(c.Dst, c.N, c.Type, root)
	case coll.SendRecv:
		return t.SendRecv(c.Dst, c.RecvN, int(c.From), c.Src, c.N, root, c.Type)
	default:
		return t.Barrier()
	}
}

func (t *MPI) Group(_ transport.Issuer, cs []coll.Call, _ unsafe.Pointer) (err error) {
	for i := range cs {
		cs[i].Messages(func(m coll.Call) bool {
			if m.Kind == coll.Recv {
				err = t.messages.Recv(t.NodeComm, m.Dst, m.N, m.Type, int(m.Root))
			} else {
				err = t.messages.Send(t.NodeComm, m.Src, m.N, m.Type, int(m.Root))
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return t.messages.Wait()
}

// Lost implements transport.Host. With a process that dies the launcher ends the job.
func (t *MPI) Lost(int) error { return nil }

// Pin implements transport.Host: the ranks of a node map one file.
func (t *MPI) Pin(dev *cuda.Device, bytes int) (*transport.Pinned, error) {
	bytes = (bytes + pageBytes - 1) / pageBytes * pageBytes
	node, err := t.NodeComm.SplitShared()
	if err != nil {
		return nil, err
	}
	p, err := t.pinOn(node, dev, bytes)
	return p, errors.Join(err, node.Close())
}

const pageBytes = 4096

func (t *MPI) pinOn(node *cudampi.Comm, dev *cuda.Device, bytes int) (*transport.Pinned, error) {
	size := node.Size()
	ranks := make([]int64, size+1)
	ranks[size] = int64(t.Rank())
	if err := node.AllGather(unsafe.Pointer(&ranks[0]), unsafe.Pointer(&ranks[size]), 1, elem.Int64); err != nil {
		return nil, err
	}
	mem, apart := shm.Map(node, size*bytes)
	pinned := false
	if apart == nil {
		clear(mem[node.Rank()*bytes:][:bytes]) // so that it is near the rank that writes it
		apart = dev.RegisterHost(unsafe.Pointer(&mem[0]), len(mem))
		pinned = apart == nil
	}
	free := func() (err error) {
		if pinned {
			err = dev.UnregisterHost(unsafe.Pointer(&mem[0]))
		}
		if mem != nil {
			err = errors.Join(err, unix.Munmap(mem))
		}
		return err
	}
	together, err := node.All(pinned)
	if err != nil {
		return nil, errors.Join(err, free())
	}
	if !together {
		if apart == nil {
			apart = errors.New("another rank cannot share memory")
		}
		p, err := transport.PinAlone(dev, bytes, t.Rank(), t.Size())
		if err != nil {
			return nil, errors.Join(err, free())
		}
		p.Apart = apart
		return p, free()
	}
	p := &transport.Pinned{Parts: make([]unsafe.Pointer, t.Size()), Free: free}
	for i, r := range ranks[:size] {
		p.Parts[r] = unsafe.Pointer(&mem[i*bytes])
	}
	return p, nil
}

func (t *MPI) NewMessage() transport.Message { return &mpiMessage{c: t.NodeComm.Comm} }

type mpiMessage struct {
	cudampi.Request
	c *cudampi.Comm
}

var _ transport.Message = (*mpiMessage)(nil)

func (m *mpiMessage) Send(src unsafe.Pointer, bytes, to int) error {
	return m.c.StartSend(&m.Request, src, bytes, to, cudampi.Pieces)
}

func (m *mpiMessage) Recv(dst unsafe.Pointer, bytes, from int) error {
	return m.c.StartRecv(&m.Request, dst, bytes, from, cudampi.Pieces)
}
