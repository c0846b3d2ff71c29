package carriers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport"
)

// StagedBackend is host memory as the way between GPUs.
var StagedBackend transport.Backend = stagedBackend{}

type stagedBackend struct{}

var _ transport.Backend = (*stagedBackend)(nil)

func (stagedBackend) Name() string { return "host-staged" }

// Probe implements transport.Backend. Host memory there always is.
func (stagedBackend) Probe(transport.Host) error { return nil }

func (stagedBackend) Joins() bool { return false }

func (stagedBackend) Open(at transport.Site) (transport.Opened, error) { return OpenStaged(at) }

// StagedSizes are bytes, the same on all ranks. Only tests change them.
var StagedSizes = struct {
	Piece   int // of a collective that are on the host at a time, at most
	Least   int // of a collective that has several pieces
	Alone   int // of a result that each rank computes whole, at most
	Short   int // of a message that is not divided
	Chunk   int // of a message, at most
	Message int // of memory for chunks, about
}{8 << 20, 1 << 20, 16 << 10, 256 << 10, 2 << 20, 16 << 20}

// Staged is a communicator in host memory that carries device memory, in pieces: the device
// copies one to the host while the host has the one before, and the device copies the one before
// that back. Their memory is pinned when the transport is opened: later the driver might wait for
// streams that wait for a call.
//
// Ranks of one node share that memory. Their devices copy a rank's data for others from there, and
// of a reduction each rank computes a slice for all. Between nodes the host communicator makes the
// calls, piece by piece.
type Staged struct {
	host    transport.Host
	dev     *cuda.Device
	caps    transport.Caps
	in, out *cuda.Stream // copies from the device, and to it
	ready   *cuda.Event  // the place of a call in its stream
	done    *cuda.Event  // and its end
	pinned  *transport.Pinned
	opened  bool // other ranks may use it
	whole   bool // all ranks reach the memory of all
	ranks   []*progress
	slots   [slots]slot
	used    int // slots, so far
	leaving int // of which the copies to the device are enqueued
	settled int // and over
	counts  []int
	// operands are addresses of what a step reduces.
	operands []uintptr
	brought  []int64 // by all ranks, and by this one
	mail     mail
	holds    holds
	instead  string
}

// OpenStaged opens the transport of a communicator. Collective.
func OpenStaged(at transport.Site) (t *Staged, err error) {
	// In an AllToAllV only two ranks know what they give each other.
	kinds := at.Host.Caps().Kinds &^ coll.SetOf(coll.SendRecv, coll.AllToAllV)
	t = &Staged{host: at.Host, dev: at.Dev, instead: at.Else, counts: make([]int, at.Host.Size()),
		operands: make([]uintptr, at.Host.Size()), brought: make([]int64, signed*(at.Host.Size()+1))}
	t.caps = transport.Caps{Library: coll.Library{Kinds: kinds}, Ordered: true, Hands: true, Now: true,
		NoGraph: fmt.Errorf("collectives through %s cannot be captured", StagedBackend.Name())}
	if err := t.alloc(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// signalBytes is the place of a word that held streams wait for.
const signalBytes = 64

// lettersAt, slotsAt and mailAt are where the counters of the mail, the slots and the chunks
// lie in the memory of a rank.
func (t *Staged) lettersAt() int { return signalBytes + progressBytes }
func (t *Staged) slotsAt() int {
	return (t.lettersAt() + t.host.Size()*countersBytes + 4095) / 4096 * 4096
}
func (t *Staged) mailAt() int { return t.slotsAt() + 2*slots*StagedSizes.Piece }

func (t *Staged) alloc() (err error) {
	t.mail.init(t.host, t.dev)
	if t.pinned, err = t.host.Pin(t.dev, t.mailAt()+t.mail.bytes()); err != nil {
		return err
	}
	t.whole = t.pinned.Whole()
	_, greatest := t.dev.Priorities()
	for _, s := range []**cuda.Stream{&t.in, &t.out} {
		if *s, err = t.dev.NewStream(greatest); err != nil {
			return err
		}
	}
	events := []**cuda.Event{&t.ready, &t.done}
	for i := range t.slots {
		events = append(events, &t.slots[i].here, &t.slots[i].gone)
	}
	for _, e := range events {
		if *e, err = t.dev.NewEvent(); err != nil {
			return err
		}
	}
	t.holds = holds{dev: t.dev, word: t.pinned.Parts[t.host.Rank()], end: t.out}
	for i := range t.slots {
		t.slots[i].from, t.slots[i].to = t.place(t.host.Rank(), i)
	}
	var letters, chunks []unsafe.Pointer
	for _, p := range t.pinned.Parts {
		if p == nil {
			t.ranks, letters, chunks = append(t.ranks, nil), append(letters, nil), append(chunks, nil)
			continue
		}
		t.ranks = append(t.ranks, (*progress)(unsafe.Add(p, signalBytes)))
		letters, chunks = append(letters, unsafe.Add(p, t.lettersAt())), append(chunks, unsafe.Add(p, t.mailAt()))
	}
	t.mail.use(letters, chunks)
	t.opened = true
	return nil
}

var _ transport.Transport = (*Staged)(nil)

func (t *Staged) Name() string { return StagedBackend.Name() }

func (t *Staged) Caps() *transport.Caps { return &t.caps }

func (t *Staged) Scratch(int) int { return 0 }

func (t *Staged) Do(q transport.Issuer, c coll.Call) error {
	if c.Kind.Traits().Message {
		return t.Group(q, []coll.Call{c}, nil)
	}
	c.Counts, c.RecvCounts = slices.Clone(c.Counts), slices.Clone(c.RecvCounts)
	return t.hand(q, t.pieces(&c).steps <= 1, func(in, out *cuda.Stream) error {
		return t.Make(in, out, &c, notAgreed)
	})
}

func (t *Staged) Group(q transport.Issuer, cs []coll.Call, _ unsafe.Pointer) error {
	if len(cs) == 0 {
		return nil
	}
	list, bytes := transport.AppendMessages(nil, cs), 0
	for i := range list {
		bytes += list[i].N * list[i].Type.Size()
	}
	return t.hand(q, bytes <= StagedSizes.Short,
		func(in, out *cuda.Stream) error { return t.mail.exchange(list, in, out) })
}

// hand has run make a call when q has got there. It is given streams for copies from the
// device and to it. These are one where a call is short, if nothing is held that of q: what
// follows in q then needs no event.
func (t *Staged) hand(q transport.Issuer, short bool, run func(in, out *cuda.Stream) error) error {
	s, held := q.Stream(), hold{}
	return q.Hand(transport.HostJob{
		By:   t.Name(),
		Hold: func() (err error) { held, err = t.holds.hold(s); return err },
		Run: func() error {
			switch {
			case held.ready == nil && short:
				return run(s, s)
			case held.ready == nil:
				return t.between(s, run)
			case short:
				return errors.Join(t.after(held.ready, t.out), run(t.out, t.out), t.holds.release(held))
			}
			return errors.Join(t.after(held.ready, t.in, t.out), run(t.in, t.out), t.holds.release(held))
		},
		Release: func() error { return t.holds.release(held) },
	})
}

// between has run make copies after what is enqueued on s, and s wait for them.
func (t *Staged) between(s *cuda.Stream, run func(in, out *cuda.Stream) error) error {
	err := t.ready.Record(s)
	if err == nil {
		err = t.after(t.ready, t.in, t.out)
	}
	if err == nil {
		err = run(t.in, t.out)
	}
	if err == nil {
		err = t.done.Record(t.out)
	}
	if err != nil {
		return err
	}
	return s.Wait(t.done)
}

func (t *Staged) after(e *cuda.Event, streams ...*cuda.Stream) error {
	for _, s := range streams {
		if err := s.Wait(e); err != nil {
			return err
		}
	}
	return nil
}

var _ transport.Opened = (*Staged)(nil)

func (t *Staged) Why() (why string, doubtful bool, err error) {
	why = "copies through host memory"
	if err := t.pinned.Apart; err != nil {
		why += ", which ranks do not share: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return why + t.instead, false, nil
}

func (t *Staged) Linked() bool { return false }

func (t *Staged) Peers() *peer.Clique { return nil }

func (t *Staged) Close() error {
	var err error
	for _, s := range []*cuda.Stream{t.in, t.out} {
		if s != nil {
			err = errors.Join(err, s.Synchronize(), s.Close())
		}
	}
	events := append(t.holds.spare, t.ready, t.done)
	for i := range t.slots {
		events = append(events, t.slots[i].here, t.slots[i].gone)
	}
	for _, e := range append(events, t.mail.events()...) {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}
	if t.opened {
		// nobody copies from this rank's memory any more
		err = errors.Join(err, t.host.Make(&coll.Call{Kind: coll.Barrier}))
	}
	if t.pinned != nil {
		err = errors.Join(err, t.pinned.Free())
	}
	*t = Staged{host: t.host, dev: t.dev, caps: t.caps}
	return err
}
