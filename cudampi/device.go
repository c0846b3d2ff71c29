package cudampi

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Path is how device memory travels.
type Path uint8

// The paths. Auto is, in this order: Peer where the devices of all ranks reach each other; AwareMPI where the library
// says that it takes device memory; Staged.
const (
	Auto     Path = iota
	Staged        // through pinned host memory, which the ranks of one node share; between nodes by MPI on the host
	AwareMPI      // device addresses go to MPI, messages only; collectives of what is small are staged
	Peer          // by copies and kernels between the devices, without MPI
)

// String returns "auto", "mpi-staged", "mpi-aware" or "mpi-peer".
func (p Path) String() string { return [...]string{"auto", "mpi-staged", "mpi-aware", "mpi-peer"}[p] }

// DeviceConfig sets up a DeviceComm. The zero value chooses for itself; values are the same on all ranks.
type DeviceConfig struct {
	Path  Path
	Aware *Aware // instead of what CUDAAware says
}

// DeviceComm does what its Comm does with the memory of a GPU, in the order of streams.
//
// The first argument of a call is its place in a stream: what the call reads must be valid there, and what it writes is
// valid for what follows there. Calls block as those of Comm do, until all ranks that take part have come; the last copies
// and kernels may still be under way in the stream, and WaitStream waits for them. Only Peer collectives block for nothing.
// With Hold the call can be made by another goroutine.
//
// All that is true of the calls of Comm holds here: what is in place, counts, reductions, errors. On Staged and AwareMPI,
// ranks that bring different things to a collective get an error that says so, all of them, but for calls without
// elements, which return at once. Messages between device buffers are taken by device buffers only. Calls cannot be
// captured in a graph, but for AllReduce on Peer. Where MPI is given device addresses, buffers must come from cuda.Malloc.
type DeviceComm struct {
	c       *Comm
	dev     *cuda.Device
	path    Path
	reason  string
	in, out *cuda.Stream
	ready   *cuda.Event
	done    *cuda.Event
	seg     *segment
	relay   *relay
	direct  *direct
	peers   *Peers
	small   *oneShot // of small all-reduces that are staged; may be nil
	rings   *rings   // of messages, where nil msgs carries them or, on AwareMPI, MPI
	msgs    messenger
	x       transfer
	list    []Message

	mu    sync.Mutex // of what follows, since Hold is called beside a call
	word  unsafe.Pointer
	turn  uint32
	spare []*cuda.Event
}

// OnDevice makes a DeviceComm of c for device d. It fails where the path asked for is not to be had, with the reason; with
// Auto the next one is taken. Reason then says why. It allocates pinned memory, and on AwareMPI and Peer device memory.
//
// Collective; it blocks. Where ranks differ in what their MPI says of itself, it is no.
func (c *Comm) OnDevice(d *cuda.Device, cfg DeviceConfig) (*DeviceComm, error) {
	if err := c.Usable("OnDevice"); err != nil {
		return nil, err
	}
	k := &DeviceComm{c: c, dev: d, msgs: messenger{c: c, dev: d, chunk: messageBytes}}
	if err := k.open(cfg); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *DeviceComm) open(cfg DeviceConfig) error {
	if cfg.Path > Peer {
		return fmt.Errorf("cudampi: path %d", cfg.Path)
	}
	err := k.alloc()
	if err := k.c.FirstFailure(err); err != nil {
		return err
	}
	said := cfg.Aware
	if said == nil {
		a, err := CUDAAware()
		if err := k.c.FirstFailure(err); err != nil {
			return err
		}
		said = &a
	}
	aware, err := k.c.All(said.Yes)
	if err != nil {
		return err
	}
	if k.c.size == 1 {
		k.path, k.reason = Staged, "one rank"
		return nil
	}
	var why string
	if k.seg, why, err = k.c.openSegment(k.dev); err != nil {
		return err
	}
	if k.seg == nil {
		k.relay, err = openRelay(k.c, k.dev)
		if err := k.c.FirstFailure(err); err != nil {
			return err
		}
		why = "; through MPI on the host, since " + why
	}
	k.path, k.reason = Staged, said.Reason+why
	if cfg.Path == Peer || cfg.Path == Auto {
		if k.peers, err = k.c.OpenPeers(k.dev, 0); err != nil {
			if cfg.Path == Peer {
				return err
			}
			k.reason += "; no peer memory: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		} else {
			k.path, k.reason = Peer, "the devices reach each other"
		}
	}
	if cfg.Path == AwareMPI || cfg.Path == Auto && k.path == Staged && aware {
		if k.direct, err = openDirect(k.c, k.dev); err != nil {
			if cfg.Path == AwareMPI {
				return err
			}
			k.reason += "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
		} else {
			k.path, k.reason = AwareMPI, said.Reason
		}
	}
	if k.seg != nil && k.path != Peer {
		if k.small, err = openOneShot(k.c, k.dev); err != nil {
			k.reason += "; small all-reduces by copies, since " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
	if k.path == Peer || k.path == Staged && k.seg != nil {
		if err := k.openRings(); err != nil {
			k.reason += "; messages through MPI on the host, since " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
	return nil
}

func (k *DeviceComm) openRings() (err error) {
	shape, own := hostRings, (*kernels)(nil)
	if k.small != nil {
		own = k.small.k
	}
	if k.path == Peer {
		shape = deviceRings
		if k.peers.apart {
			own = k.peers.k
		}
	}
	k.rings, err = openRings(k.c, k.dev, own, shape, k.path == Peer)
	return err
}

func (k *DeviceComm) alloc() (err error) {
	_, greatest := k.dev.Priorities()
	for _, s := range []**cuda.Stream{&k.in, &k.out} {
		if *s, err = k.dev.NewStream(greatest); err != nil {
			return err
		}
	}
	for _, e := range []**cuda.Event{&k.ready, &k.done} {
		if *e, err = k.dev.NewEvent(false); err != nil {
			return err
		}
	}
	if k.word, err = k.dev.MallocHost(4); err != nil {
		return err
	}
	*(*uint32)(k.word) = 0
	return nil
}

// Path returns the path of collectives, and Reason why it was chosen.
func (k *DeviceComm) Path() Path { return k.path }

// Peers returns what carries the collectives of path Peer, nil with another. A caller that uses it beside the DeviceComm has
// all calls of both follow each other, and sets Ordered.
func (k *DeviceComm) Peers() *Peers { return k.peers }

// Reason returns what led to the path, for the line a program logs at its start.
func (k *DeviceComm) Reason() string { return k.reason }

// Close gives back what OnDevice allocated; a second Close does nothing. What calls have enqueued must have finished, and
// every held point been released. Collective; it blocks.
func (k *DeviceComm) Close() error {
	if k.in == nil {
		return nil
	}
	err := errors.Join(k.in.Synchronize(), k.out.Synchronize(), k.c.Barrier())
	return errors.Join(err, k.close())
}

func (k *DeviceComm) close() error {
	var err error
	if k.rings != nil {
		err = errors.Join(err, k.rings.close())
	}
	if k.small != nil {
		err = errors.Join(err, k.small.close())
	}
	if k.peers != nil {
		err = errors.Join(err, k.peers.Close())
	}
	if k.direct != nil {
		err = errors.Join(err, k.direct.close())
	}
	if k.seg != nil {
		err = errors.Join(err, k.seg.close())
	}
	if k.relay != nil {
		err = errors.Join(err, k.relay.close())
	}
	err = errors.Join(err, k.msgs.close())
	for _, s := range []*cuda.Stream{k.in, k.out} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	for _, e := range append(k.spare, k.ready, k.done) {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}
	err = errors.Join(err, k.dev.FreeHost(k.word))
	k.in, k.out, k.word, k.spare = nil, nil, nil, nil
	return err
}

// Point is a place in a stream, for one call.
type Point struct {
	s     *cuda.Stream
	ready *cuda.Event // of what comes before; nil where nothing was enqueued since
	turn  uint32
}

// At is the present end of s. Nothing may be enqueued on s until the call has returned.
func At(s *cuda.Stream) Point { return Point{s: s} }

// Hold is the present end of s, too, and makes what is enqueued on s from now on wait, on the device, for the call. So
// the host can go on while another goroutine makes the call. Calls are made in the order of their Holds. Where there will
// be no call, Release must be called in its stead, or s waits for ever. With AwareMPI it is refused: at the first use of an
// allocation the library shares it between processes, and what it calls for that may wait for all streams of the device,
// also for one that is held. Source: cuda.h, cuStreamWaitValue32; Open MPI 4.1, common_cuda.c.
func (k *DeviceComm) Hold(s *cuda.Stream) (Point, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == AwareMPI {
		return Point{}, k.c.Errorf("Hold", ErrOther, "an MPI that takes device memory may wait for the stream that is held")
	}
	if err := k.hostOnly(At(s), "Hold"); err != nil {
		return Point{}, err
	}
	var e *cuda.Event
	if n := len(k.spare); n > 0 {
		e, k.spare = k.spare[n-1], k.spare[:n-1]
	} else {
		var err error
		if e, err = k.dev.NewEvent(false); err != nil {
			return Point{}, err
		}
	}
	if err := e.Record(s); err != nil {
		k.spare = append(k.spare, e)
		return Point{}, err
	}
	if err := s.WaitValue(k.word, k.turn+1); err != nil {
		k.spare = append(k.spare, e)
		return Point{}, err
	}
	k.turn++
	return Point{s, e, k.turn}, nil
}

// Release lets the stream of a held point go on without a call. After a call, failed or not, it is not needed.
func (k *DeviceComm) Release(p Point) error { return k.end(p, false, nil) }

// begin makes the streams of k wait for p. Where alone, a call needs no streams of its own, and may use that of p.
func (k *DeviceComm) begin(p Point, alone bool) (in, out *cuda.Stream, err error) {
	if p.turn == 0 {
		if alone {
			return p.s, p.s, nil
		}
		if err := k.ready.Record(p.s); err != nil {
			return nil, nil, err
		}
		p.ready = k.ready
	}
	if err := k.in.Wait(p.ready); err != nil {
		return nil, nil, err
	}
	return k.in, k.out, k.out.Wait(p.ready)
}

// end makes what follows p wait for what is enqueued on out, and adds what goes wrong to err.
func (k *DeviceComm) end(p Point, alone bool, err error) error {
	switch {
	case p.turn != 0:
		k.mu.Lock()
		defer k.mu.Unlock()
		k.spare = append(k.spare, p.ready)
		return errors.Join(err, k.out.WriteValue(k.word, p.turn))
	case alone || p.s == nil:
		return err
	}
	if e := k.done.Record(k.out); e != nil {
		return errors.Join(err, e)
	}
	return errors.Join(err, p.s.Wait(k.done))
}

// do carries out k.x, a collective, which check has looked at.
func (k *DeviceComm) do(p Point, check error) error {
	x := &k.x
	none := x.n == 0 && (x.what != allToAll || x.recv.counts == nil)
	if check != nil || none {
		return k.end(p, true, check)
	}
	if k.c.size > 1 && (k.path != Peer || x.what != allReduce) {
		if err := k.hostOnly(p, collectiveNames[x.what]); err != nil {
			return k.end(p, true, err)
		}
	}
	bytes := x.n * x.t.Size()
	alone := k.c.size == 1 || k.path == Peer || bytes <= smallBytes || k.path == AwareMPI && bytes >= directMin
	in, out, err := k.begin(p, alone)
	if err == nil && k.path != Peer {
		err = x.keep(out)
	}
	agreed := k.path == AwareMPI && k.c.size > 1
	if err == nil && agreed { // or ranks would choose differently
		err = k.agree()
	}
	if err != nil {
		return k.end(p, alone, err)
	}
	switch {
	case k.c.size == 1:
	case k.path == Peer:
		err = k.peers.carryOut(x, out)
	case agreed && x.n*x.t.Size() >= directMin:
		if err = k.passed(out); err == nil { // MPI knows nothing of streams
			err = k.direct.carryOut(x, out)
		}
	case k.small != nil && x.what == allReduce && bytes <= min(smallBytes, smallMost):
		if !agreed {
			err = k.seg.agree(x)
		}
		if err == nil {
			err = k.small.allReduce(x, out)
		}
	case k.seg != nil:
		err = k.seg.carryOut(x, in, out, agreed)
	default:
		err = k.relay.carryOut(x, in, out, agreed)
	}
	return k.end(p, alone, err)
}

// hostOnly refuses a stream that is being captured, of a call in which the host takes part.
func (k *DeviceComm) hostOnly(p Point, name string) error {
	if p.turn != 0 {
		return nil // Hold has looked
	}
	capturing, err := p.s.Capturing()
	if err != nil || !capturing {
		return err
	}
	return k.c.Errorf(name, ErrOther, "the stream is being captured, and MPI cannot be part of a graph")
}

// agree compares the calls of all ranks.
func (k *DeviceComm) agree() error {
	if k.seg != nil {
		return k.seg.agree(&k.x)
	}
	return k.c.agree(&k.x)
}

// passed waits until the device has come to the end of s.
func (k *DeviceComm) passed(s *cuda.Stream) error {
	if done, err := s.Query(); done || err != nil { // cheaper than an event, where the host has waited before
		return err
	}
	if err := k.done.Record(s); err != nil {
		return err
	}
	return k.c.WaitEvent(k.done)
}

// agree compares the calls of all ranks, since where two make other numbers of steps they would wait for ever, and sets
// what only all of them know.
func (c *Comm) agree(x *transfer) error {
	const words = int(unsafe.Sizeof(contract{}) / 8)
	all := make([]contract, c.size+1)
	mine := &all[c.size]
	*mine = x.contract()
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), words, elem.Int64); err != nil {
		return err
	}
	for r, k := range all[:c.size] {
		if err := c.differs(*mine, k, r); err != nil {
			return err
		}
		x.n = max(x.n, int(k.n))
	}
	if x.what != allToAll || x.recv.counts == nil {
		return nil
	}
	n := c.size
	told := make([]int64, 2*n*(n+1))
	own := told[2*n*n:]
	x.tell(own[:n], own[n:])
	if err := c.AllGather(unsafe.Pointer(&told[0]), unsafe.Pointer(&own[0]), 2*n, elem.Int64); err != nil {
		return err
	}
	return c.unmatched(x, func(r int) (send, recv []int64) { return told[2*n*r:][:n], told[2*n*r+n:][:n] })
}
