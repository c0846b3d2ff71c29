package cudampi

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/transfer"
)

// Path is how device memory travels.
type Path uint8

// The paths. Auto is AwareMPI where the library says that it takes device memory, else Staged.
const (
	Auto     Path = iota
	Staged        // through pinned host memory: by a Carrier, or by MPI on the host
	AwareMPI      // device addresses go to MPI, messages only; collectives of what is small are staged
	Peer          // by a Carrier, between the devices
)

// String returns "auto", "mpi-staged", "mpi-aware" or "mpi-peer".
func (p Path) String() string { return [...]string{"auto", "mpi-staged", "mpi-aware", "mpi-peer"}[p] }

// Carrier carries the calls of a DeviceComm between ranks of one node, in place of MPI on the host. Package
// lockstep/internal/peer has one. One goroutine at a time calls its methods, in the same order on all ranks.
type Carrier interface {
	// Use tells it the path that has been chosen, before all calls. What it returns is added to Reason. Collective.
	Use(p Path) (why string)
	// Agree compares the calls of all ranks, and sets what only all of them know.
	Agree(x *transfer.Transfer) error
	// Collective does x. Copies from the device go to the stream in, and copies to it to out, which may be the same stream. The
	// memory of x may be used in both. agreed says that Agree has been called.
	Collective(x *transfer.Transfer, in, out *cuda.Stream, agreed bool) error
	// Exchange does messages as DeviceComm.Exchange does, if it carries messages: CarriesMessages says so.
	Exchange(messages []Message, in, out *cuda.Stream) error
	CarriesMessages() bool
	// Close gives back what the Carrier has, once this rank's copies are over. Collective.
	Close() error
}

// DeviceConfig sets up a DeviceComm. The zero value chooses for itself; values are the same on all ranks.
type DeviceConfig struct {
	Path    Path
	Aware   *Aware  // instead of what CUDAAware says
	Carrier Carrier // nil for MPI alone; needed by Peer. The DeviceComm closes it, also where OnDevice fails.
	Why     string  // added to Reason
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
	carrier Carrier // may be nil
	relay   *relay  // where there is no carrier
	direct  *direct // on AwareMPI
	x       transfer.Transfer
	msgs    messenger // of messages that neither the carrier nor MPI carries
	list    []Message

	mu    sync.Mutex // of what follows, since Hold is called beside a call
	word  unsafe.Pointer
	turn  uint32
	spare []*cuda.Event
}

// OnDevice makes a DeviceComm of c for device d. It fails where the path asked for is not to be had, with the reason; with
// Auto the next one is taken. Reason then says why. It allocates pinned memory, and on AwareMPI device memory.
//
// Collective; it blocks. Where ranks differ in what their MPI says of itself, it is no.
func (c *Comm) OnDevice(d *cuda.Device, cfg DeviceConfig) (*DeviceComm, error) {
	k := &DeviceComm{c: c, dev: d, carrier: cfg.Carrier, msgs: messenger{c: c, dev: d, chunk: transfer.Sizes.Message}}
	err := c.Usable("OnDevice")
	if err == nil {
		err = k.open(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	if k.carrier != nil && c.size > 1 {
		k.reason += k.carrier.Use(k.path)
	}
	return k, nil
}

// AwareOnAll is CUDAAware, or said if it is not nil, with Yes only where all ranks say so. Collective; it blocks.
func (c *Comm) AwareOnAll(said *Aware) (Aware, error) {
	var a Aware
	var err error
	if said != nil {
		a = *said
	} else {
		a, err = CUDAAware()
	}
	if err := c.FirstFailure(err); err != nil {
		return a, err
	}
	a.Yes, err = c.All(a.Yes)
	return a, err
}

func (k *DeviceComm) open(cfg DeviceConfig) error {
	if cfg.Path > Peer {
		return fmt.Errorf("cudampi: path %d", cfg.Path)
	}
	if cfg.Path == Peer && cfg.Carrier == nil && k.c.size > 1 {
		return errors.New("cudampi: path mpi-peer without a carrier")
	}
	err := k.alloc()
	if err := k.c.FirstFailure(err); err != nil {
		return err
	}
	aware, err := k.c.AwareOnAll(cfg.Aware)
	if err != nil {
		return err
	}
	switch {
	case k.c.size == 1:
		k.path, k.reason = Staged, "one rank"
		return nil
	case cfg.Path == Peer:
		k.path, k.reason = Peer, cfg.Why
		return nil
	}
	if k.carrier == nil {
		k.relay, err = openRelay(k.c, k.dev)
		if err := k.c.FirstFailure(err); err != nil {
			return err
		}
	}
	k.path, k.reason = Staged, aware.Reason+cfg.Why
	if cfg.Path == AwareMPI || cfg.Path == Auto && aware.Yes {
		if k.direct, err = openDirect(k.c, k.dev); err != nil {
			if cfg.Path == AwareMPI {
				return err
			}
			k.reason += "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
		} else {
			k.path, k.reason = AwareMPI, aware.Reason
		}
	}
	return nil
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
	if k.carrier != nil {
		err = errors.Join(err, k.carrier.Close())
		k.carrier = nil
	}
	if k.direct != nil {
		err = errors.Join(err, k.direct.close())
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
	none := x.N == 0 && (x.What != transfer.AllToAll || x.Recv.Counts == nil)
	if check != nil || none {
		return k.end(p, true, check)
	}
	if k.c.size > 1 && (k.path != Peer || x.What != transfer.AllReduce) {
		if err := k.hostOnly(p, x.What.String()); err != nil {
			return k.end(p, true, err)
		}
	}
	bytes := x.N * x.Type.Size()
	alone := k.c.size == 1 || k.path == Peer || bytes <= transfer.Sizes.Small || k.path == AwareMPI && bytes >= transfer.Sizes.Direct
	in, out, err := k.begin(p, alone)
	if err == nil && k.path != Peer {
		err = x.Keep(out)
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
	case agreed && x.N*x.Type.Size() >= transfer.Sizes.Direct:
		if err = k.passed(out); err == nil { // MPI knows nothing of streams
			err = k.direct.carryOut(x, out)
		}
	case k.carrier != nil:
		err = k.carrier.Collective(x, in, out, agreed)
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
	if k.carrier != nil {
		return k.carrier.Agree(&k.x)
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
func (c *Comm) agree(x *transfer.Transfer) error {
	const words = int(unsafe.Sizeof(transfer.Signature{}) / 8)
	all := make([]transfer.Signature, c.size+1)
	mine := &all[c.size]
	*mine = x.Signature()
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), words, elem.Int64); err != nil {
		return err
	}
	for r, other := range all[:c.size] {
		if text := mine.Differs(other, r); text != "" {
			return c.Mismatch(x.What, text)
		}
		x.N = max(x.N, int(other.N))
	}
	if x.What != transfer.AllToAll || x.Recv.Counts == nil {
		return nil
	}
	n := c.size
	told := make([]int64, 2*n*(n+1))
	own := told[2*n*n:]
	x.Tell(own[:n], own[n:])
	if err := c.AllGather(unsafe.Pointer(&told[0]), unsafe.Pointer(&own[0]), 2*n, elem.Int64); err != nil {
		return err
	}
	if text := x.Unmatched(func(r int) (send, recv []int64) { return told[2*n*r:][:n], told[2*n*r+n:][:n] }); text != "" {
		return c.Mismatch(x.What, text)
	}
	return nil
}

// Mismatch is the error of a collective to which ranks brought what text says.
func (c *Comm) Mismatch(what transfer.Kind, text string) error { return c.Differ(what.String(), text) }
