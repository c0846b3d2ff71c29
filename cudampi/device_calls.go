package cudampi

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/transfer"
)

// AllReduce is Comm.AllReduce on device memory. Collective.
func (k *DeviceComm) AllReduce(p Point, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return k.do(p, k.x.Whole(k.c, transfer.AllReduce, dst, src, n, t, op, 0))
}

// Reduce is Comm.Reduce on device memory. Collective.
func (k *DeviceComm) Reduce(p Point, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return k.do(p, k.x.Whole(k.c, transfer.Reduce, dst, src, n, t, op, root))
}

// Broadcast is Comm.Broadcast on device memory. Collective.
func (k *DeviceComm) Broadcast(p Point, buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return k.do(p, k.x.Whole(k.c, transfer.Broadcast, buf, buf, n, t, 0, root))
}

// AllGather is Comm.AllGather on device memory. Collective.
func (k *DeviceComm) AllGather(p Point, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return k.do(p, k.x.InParts(k.c, transfer.AllGather, dst, src, transfer.Parts{}, transfer.Parts{Each: n}, t, 0, 0))
}

// AllGatherV is Comm.AllGatherV on device memory. Collective.
func (k *DeviceComm) AllGatherV(p Point, dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return k.do(p, k.x.InParts(k.c, transfer.AllGather, dst, src, transfer.Parts{}, transfer.Parts{Counts: counts}, t, 0, 0))
}

// Gather is Comm.Gather on device memory. Collective.
func (k *DeviceComm) Gather(p Point, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return k.do(p, k.x.InParts(k.c, transfer.Gather, dst, src, transfer.Parts{}, transfer.Parts{Each: n}, t, 0, root))
}

// GatherV is Comm.GatherV on device memory. Collective.
func (k *DeviceComm) GatherV(p Point, dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return k.do(p, k.x.InParts(k.c, transfer.Gather, dst, src, transfer.Parts{}, transfer.Parts{Counts: counts}, t, 0, root))
}

// ReduceScatter is Comm.ReduceScatter on device memory. Collective.
func (k *DeviceComm) ReduceScatter(p Point, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return k.do(p, k.x.InParts(k.c, transfer.ReduceScatter, dst, src, transfer.Parts{Each: n}, transfer.Parts{}, t, op, 0))
}

// ReduceScatterV is Comm.ReduceScatterV on device memory. Collective.
func (k *DeviceComm) ReduceScatterV(p Point, dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error {
	return k.do(p, k.x.InParts(k.c, transfer.ReduceScatter, dst, src, transfer.Parts{Counts: counts}, transfer.Parts{}, t, op, 0))
}

// Scatter is Comm.Scatter on device memory. Collective.
func (k *DeviceComm) Scatter(p Point, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return k.do(p, k.x.InParts(k.c, transfer.Scatter, dst, src, transfer.Parts{Each: n}, transfer.Parts{}, t, 0, root))
}

// ScatterV is Comm.ScatterV on device memory. Collective.
func (k *DeviceComm) ScatterV(p Point, dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return k.do(p, k.x.InParts(k.c, transfer.Scatter, dst, src, transfer.Parts{Counts: counts}, transfer.Parts{}, t, 0, root))
}

// AllToAll is Comm.AllToAll on device memory. Collective.
func (k *DeviceComm) AllToAll(p Point, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return k.do(p, k.x.InParts(k.c, transfer.AllToAll, dst, src, transfer.Parts{Each: n}, transfer.Parts{Each: n}, t, 0, 0))
}

// AllToAllV is Comm.AllToAllV on device memory. Collective.
func (k *DeviceComm) AllToAllV(p Point, dst unsafe.Pointer, recvCounts []int, src unsafe.Pointer, sendCounts []int, t elem.Type) error {
	send, recv := transfer.Parts{Counts: sendCounts}, transfer.Parts{Counts: recvCounts}
	err := k.x.InParts(k.c, transfer.AllToAll, dst, src, send, recv, t, 0, 0)
	if err == nil && dst == src && recv.Offset(k.c.size) > 0 && send.Offset(k.c.size) > 0 {
		err = k.c.Errorf("AllToAllV", ErrBuffer, "dst is src: there is no in-place form")
	}
	if err == nil && send.Len(k.c.rank) != recv.Len(k.c.rank) {
		err = k.c.Errorf("AllToAllV", ErrCount, "rank %d sends %d %v elements to itself, %d expected",
			k.c.rank, send.Len(k.c.rank), t, recv.Len(k.c.rank))
	}
	return k.do(p, err)
}

// Message is a message of device memory to or from a rank.
type Message struct {
	Buf  unsafe.Pointer
	N    int // elements
	Type elem.Type
	Peer int
	Recv bool // from Peer into Buf; else to Peer from Buf
}

// Exchange does several messages together, so that no order among them can deadlock, as P2P does. Messages between two
// ranks match in their order. Lengths are checked as Recv does.
func (k *DeviceComm) Exchange(p Point, messages ...Message) error {
	var err error
	bytes := 0
	for i := range messages {
		m, name := &messages[i], "MPI_Isend"
		if m.Recv {
			name = "MPI_Irecv"
		}
		if err == nil {
			err = k.c.Ready(name, m.N, m.Type, m.Buf, m.Buf)
		}
		if err == nil {
			err = k.c.CheckRank(name, m.Peer)
		}
		if err == nil {
			bytes += m.N * m.Type.Size()
		}
	}
	if err != nil || len(messages) == 0 {
		return k.end(p, true, err)
	}
	if err := k.hostOnly(p, "Exchange"); err != nil {
		return k.end(p, true, err)
	}
	aware := k.path == AwareMPI
	alone := aware || bytes <= transfer.Sizes.Small
	in, out, err := k.begin(p, alone)
	switch {
	case err != nil:
	case aware:
		err = k.send(messages, out)
	case k.carrier != nil && k.carrier.CarriesMessages():
		err = k.carrier.Exchange(messages, in, out)
	default:
		err = k.stage(messages, in, out)
	}
	return k.end(p, alone, err)
}

// send gives device addresses to MPI.
func (k *DeviceComm) send(messages []Message, s *cuda.Stream) error {
	if err := k.passed(s); err != nil {
		return err
	}
	for _, m := range messages {
		k.c.group.add(k.c, m.Buf, m.N, m.Type, m.Peer, tagDevice, m.Recv, nil)
	}
	return k.c.group.Wait()
}

func (k *DeviceComm) stage(messages []Message, in, out *cuda.Stream) error {
	for _, m := range messages {
		if err := k.msgs.add(m); err != nil {
			return err
		}
	}
	return k.msgs.run(in, out)
}

// Send sends n elements at src to rank to, which takes them by Recv, SendRecv or Exchange. It blocks until src may change
// in the order of the stream, at most until the receiver has all of it; to oneself it may never return.
func (k *DeviceComm) Send(p Point, src unsafe.Pointer, n int, t elem.Type, to int) error {
	k.list = append(k.list[:0], Message{src, n, t, to, false})
	return k.Exchange(p, k.list...)
}

// Recv receives n elements from rank from.
func (k *DeviceComm) Recv(p Point, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	k.list = append(k.list[:0], Message{dst, n, t, from, true})
	return k.Exchange(p, k.list...)
}

// SendRecv sends sendN elements to rank to while it receives recvN elements from rank from; either may be this rank.
func (k *DeviceComm) SendRecv(p Point, dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error {
	k.list = append(k.list[:0], Message{dst, recvN, t, from, true}, Message{src, sendN, t, to, false})
	return k.Exchange(p, k.list...)
}

// Barrier blocks until every rank has called it; it orders the hosts, and no stream. Source: mpi.h, MPI_Barrier.
func (k *DeviceComm) Barrier() error { return k.c.Barrier() }
