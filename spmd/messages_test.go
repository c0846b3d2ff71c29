package spmd_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// posted is element i of message k from one rank to another.
func posted(from, to, k, i int) int32 { return int32(i + 1000*k + 1_000_000*from + 10_000_000*to) }

// letters are messages of this rank to and from every rank, those of one length after those of
// another.
type letters struct {
	out, in spmd.Buffer[int32]
	sizes   []int
	total   int // elements to one rank
}

func newLetters(w *spmd.World, sizes []int) (l letters, err error) {
	l.sizes = sizes
	for _, n := range sizes {
		l.total += n
	}
	if l.out, err = spmd.Alloc[int32](w, w.Size()*l.total); err != nil {
		return l, err
	}
	if l.in, err = spmd.Alloc[int32](w, w.Size()*l.total); err != nil {
		return l, err
	}
	values := make([]int32, 0, l.out.Len())
	for to := range w.Size() {
		for k, n := range sizes {
			for i := range n {
				values = append(values, posted(w.Rank(), to, k, i))
			}
		}
	}
	return l, l.out.CopyFrom(values)
}

// exchange makes everyone send everything to everyone in one group.
func (l letters) exchange(c spmd.Comm) error {
	return c.Group(func() error {
		var err error
		for r := range c.Size() {
			at := r * l.total
			for _, n := range l.sizes {
				err = errors.Join(err, spmd.Send(c, l.out.Slice(at, at+n), r), spmd.Recv(c, l.in.Slice(at, at+n), r))
				at += n
			}
		}
		return err
	})
}

// check compares the received messages of lengths up to most, and forgets them.
func (l letters) check(w *spmd.World, what string, most int) error {
	got := make([]int32, l.in.Len())
	if err := l.in.CopyTo(got); err != nil {
		return err
	}
	at := 0
	for from := range w.Size() {
		for k, n := range l.sizes {
			for i := range n {
				if want := posted(from, w.Rank(), k, i); n <= most && got[at+i] != want {
					return fmt.Errorf("%s: element %d of message %d, of %d, from rank %d is %d, want %d",
						what, i, k, n, from, got[at+i], want)
				}
			}
			at += n
		}
	}
	return l.in.SetAll(-1)
}

// exchangeLetters sends messages of some sizes in groups, on their own and in a graph. Those of
// more than most elements need not arrive.
func exchangeLetters(w *spmd.World, sizes []int, most int) error {
	s, err := w.NewStream("messages")
	if err != nil {
		return err
	}
	l, err := newLetters(w, sizes)
	if err != nil {
		return err
	}
	c := w.Comm().On(s)
	for i := range 3 {
		if err := errors.Join(l.exchange(c), s.Synchronize(),
			l.check(w, fmt.Sprintf("group %d", i), most)); err != nil {
			return err
		}
	}
	g, err := s.Capture(func() error { return errors.Join(l.exchange(c), l.exchange(c)) })
	if err != nil {
		return err
	}
	for i := range 3 {
		if err := errors.Join(g.Launch(s), g.Launch(s), s.Synchronize(),
			l.check(w, fmt.Sprintf("graph %d", i), most)); err != nil {
			return err
		}
		if err := errors.Join(l.exchange(c), s.Synchronize(), l.check(w, "between the replays", most)); err != nil {
			return err
		}
	}
	return errors.Join(g.Close(), l.out.Free(), l.in.Free())
}

// TestMessages: messages of all sizes get through at once, in groups and in graphs,
// and those of a group hold each other up in no order. On GPUs short ones and long ones go
// different ways.
func TestMessages(t *testing.T) {
	everyKind(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		must(t, exchangeLetters(w, []int{1 << 18, 1, 1000, 1 << 17, 3}, 1<<18))
		var many []int
		for k := range 50 {
			many = append(many, 1+k*k)
		}
		must(t, exchangeLetters(w, many, 1<<18))
		if w.Size() < 2 || w.Rank() > 1 {
			return
		}
		short, long := alloc[float32](t, w, 8), alloc[float32](t, w, 1<<20)
		must(t, short.SetAll(1))
		must(t, long.SetAll(2))
		c := w.Comm()
		if w.Rank() == 0 { // rank 1 sends the short one when it has the long one
			must(t, c.Group(func() error { return errors.Join(spmd.Recv(c, short, 1), spmd.Send(c, long, 1)) }))
		} else {
			must(t, short.SetAll(3))
			must(t, spmd.Recv(c, long, 0))
			must(t, spmd.Send(c, short, 0))
		}
		if short.At(7) != 3 || long.At(1<<20-1) != 2 {
			t.Errorf("%v and %v have come", short.At(7), long.At(1<<20-1))
		}
	})
}

// TestEmptyMessages: a message of no elements is a message all the same. Recv waits for it, and it
// takes no other's place.
func TestEmptyMessages(t *testing.T) { everyWay(t, emptyMessages) }

func emptyMessages(t *testing.T, w *spmd.World) {
	ranks, me := w.Size(), w.Rank()
	if ranks < 2 {
		return
	}
	const longest = 250 // of a path
	path := alloc[uint8](t, w, longest)
	dir := t.TempDir()
	if me == 0 {
		must(t, path.CopyFrom(append([]byte(dir), make([]byte, longest-len(dir))...)))
	}
	must(t, spmd.Broadcast(w.Comm(), path, 0))
	got := make([]byte, longest)
	must(t, path.CopyTo(got))
	sent := filepath.Join(string(bytes.TrimRight(got, "\x00")), "sent")
	x, in := alloc[int32](t, w, 8), alloc[int32](t, w, 8)
	none := x.Slice(8, 8)
	for _, m := range modesOf(w) {
		must(t, in.SetAll(-1))
		must(t, spmd.Barrier(w.Comm()))
		switch me {
		case 0:
			sum := [sha256.Size]byte{}
			for range 100_000 { // work, during which nobody may be told that it is done
				sum = sha256.Sum256(sum[:])
			}
			must(t, x.SetAll(7))
			must(t, os.WriteFile(sent, sum[:], 0o666))
			m.run(t, w, func(c spmd.Comm) error {
				return errors.Join(spmd.Send(c, none, 1), spmd.Send(c, x.Slice(0, 3), 1),
					spmd.Send(c, spmd.Buffer[int32]{}, 1))
			})
		case 1:
			m.run(t, w, func(c spmd.Comm) error { return spmd.Recv(c, none, 0) })
			if _, err := os.Stat(sent); err != nil {
				t.Errorf("%s: Recv of no elements does not wait for its message: %v", m.name, err)
			}
			m.run(t, w, func(c spmd.Comm) error {
				return errors.Join(spmd.Recv(c, in.Slice(0, 3), 0), spmd.Recv(c, spmd.Buffer[int32]{}, 0))
			})
			if in.At(0) != 7 || in.At(2) != 7 || in.At(3) != -1 {
				t.Errorf("%s: the message after one of no elements is %d, %d, then %d", m.name, in.At(0),
					in.At(2), in.At(3))
			}
		}
		must(t, spmd.Barrier(w.Comm()))
		if me == 0 {
			must(t, os.Remove(sent))
		}
		// Each rank sends as many elements as its number.
		next, prev := (me+1)%ranks, (me+ranks-1)%ranks
		must(t, x.SetAll(int32(me)))
		m.run(t, w, func(c spmd.Comm) error { return spmd.SendRecv(c, in.Slice(0, prev), prev, x.Slice(0, me), next) })
		if prev > 0 && in.At(prev-1) != int32(prev) {
			t.Errorf("%s: rank %d sent %d", m.name, prev, in.At(prev-1))
		}
	}
}

// peerMessages are messages that kernels between peers carry, and then groups with others that NCCL
// carries.
func peerMessages(w *spmd.World) error {
	much := 2 << 20 / max(1, w.Size()-1) / 4 // elements of the longest
	many := make([]int, 20)
	for k := range many {
		many[k] = 1 + 37*k
	}
	err := errors.Join(exchangeLetters(w, []int{700, 1, 4097}, much), exchangeLetters(w, many, much))
	if err == nil {
		err = gatherMuch(w, much)
	}
	if w.Size() == 3 && err == nil {
		err = exchangeLetters(w, []int{much + 1, 9}, much)
	}
	if err == nil {
		err = shiftLine(w)
	}
	return errors.Join(err, w.Emit(map[string]any{"right": err == nil}))
}

// gatherMuch gathers parts that are too long for one step, and not for messages, and scatters them
// again.
func gatherMuch(w *spmd.World, n int) error {
	all, err := spmd.Alloc[int32](w, n*w.Size())
	if err != nil {
		return err
	}
	part, err := spmd.Alloc[int32](w, n)
	if err != nil {
		return err
	}
	values := make([]int32, n)
	for i := range values {
		values[i] = posted(w.Rank(), 0, 0, i)
	}
	err = errors.Join(part.CopyFrom(values), spmd.Gather(w.Comm(), all, part, 1), part.SetAll(0),
		spmd.Scatter(w.Comm(), part, all, 1), part.CopyTo(values))
	for i, v := range values {
		if v != posted(w.Rank(), 0, 0, i) {
			return errors.Join(err, fmt.Errorf("element %d has come back as %d", i, v))
		}
	}
	return err
}

// messagesBetweenPeers: short messages take no call of NCCL. With long ones in a group each goes
// its way, beside the other.
func messagesBetweenPeers(t *testing.T) {
	for ranks, calls := range map[int]int{2: 0, 3: (3 + 2 + 3) * 3} { // of the last groups, to each rank
		if ranks == 2 && !testkit.AllCases() {
			continue
		}
		logs := t.TempDir()
		env := []string{"FAKECUDA_SHARED=1", "FAKECUDA_PEERS=1",
			rankEnv + "=FAKECUDA_LOG=" + logs + "/cuda%r;FAKENCCL_LOG=" + logs + "/nccl%r"}
		status, out := run(t, ranks, "peer messages", env, "--device", "cuda", "--collectives", "nccl", "--json", "-")
		if status != 0 || !strings.Contains(out, `"right":true`) {
			t.Errorf("%d ranks: status %d\n%s", ranks, status, out)
		}
		log, err := os.ReadFile(filepath.Join(logs, "nccl1"))
		must(t, err)
		cuda, err := os.ReadFile(filepath.Join(logs, "cuda1"))
		must(t, err)
		if steps := strings.Count(string(cuda), " function=peer_barrier "); steps > 10 {
			t.Errorf("%d ranks: something went in steps, with %d barriers", ranks, steps)
		}
		for _, name := range []string{"ncclSend ", "ncclRecv "} {
			if got := strings.Count(string(log), name); got != calls {
				t.Errorf("%d ranks: %d calls of %s, want %d", ranks, got, name, calls)
			}
		}
	}
}

// mixedStreams makes calls of peers and calls of NCCL follow each other on two streams, all on one
// communicator.
func mixedStreams(w *spmd.World) error {
	a, b, err := twoStreams(w)
	if err != nil {
		return err
	}
	l, err := newLetters(w, []int{5})
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float32](w, 1<<20)
	if err != nil {
		return err
	}
	for range 3 {
		if err := errors.Join(l.exchange(w.Comm().On(a)), spmd.AllReduce(w.Comm().On(b), x, x, spmd.Sum)); err != nil {
			return err
		}
	}
	return errors.Join(a.Synchronize(), b.Synchronize(), l.check(w, "beside NCCL", 5))
}

// groupsBesideNCCL: a call of NCCL waits for the kernel between peers of a group on another stream,
// and the other way around.
func groupsBesideNCCL(t *testing.T) {
	logs := t.TempDir()
	env := []string{"FAKECUDA_SHARED=1", "FAKECUDA_PEERS=1",
		rankEnv + "=FAKECUDA_LOG=" + logs + "/%r;FAKENCCL_LOG=" + logs + "/%r"}
	// whose events are not the order's
	status, out := run(t, 3, "mixed streams", env, "--device", "cuda", "--collectives", "nccl", "--summary", "off")
	if status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	log, err := os.ReadFile(filepath.Join(logs, "1"))
	must(t, err)
	type mark struct{ call, event, stream string }
	var between []mark // the first two sums: there is a group on the other stream
	sums := 0
	for _, line := range testkit.LogLines(string(log)) {
		switch call, _, _ := strings.Cut(line, " "); {
		case call == "ncclAllReduce":
			sums++
		case sums == 1 && (call == "cuEventRecord" || call == "cuStreamWaitEvent"):
			between = append(between, mark{call, value(line, "event"), value(line, "stream")})
		}
	}
	if sums != 3 || len(between) != 4 {
		t.Fatalf("%d sums, want 3; between the first two %v, want one stream to wait for the other, and back",
			sums, between)
	}
	sum, group := between[0].stream, between[1].stream
	there, back := between[0].event, between[2].event
	want := []mark{{"cuEventRecord", there, sum}, {"cuStreamWaitEvent", there, group},
		{"cuEventRecord", back, group}, {"cuStreamWaitEvent", back, sum}}
	if sum == group || !slices.Equal(between, want) {
		t.Errorf("between two sums %v, want %v", between, want)
	}
}

// peersWithoutNCCL: collectives and messages between peers are captured, and right, if MPI stands
// in for NCCL.
func peersWithoutNCCL(t *testing.T) {
	for what, ranks := range map[string]int{"peer messages": 2, "peer sums": 3} {
		status, out := run(t, ranks, what, []string{"FAKECUDA_SHARED=1", "FAKECUDA_PEERS=1"}, "--device",
			"cuda", "--collectives", "mpi-peer", "--json", "-")
		if status != 0 || !strings.Contains(out, `"right":true`) {
			t.Errorf("%s: status %d\n%s", what, status, out)
		}
	}
}

// otherLengths are elements that rank 0 sends and rank 1 asks for.
var otherLengths = map[string][2]int{"a message too long": {5, 4}, "a message too short": {0, 4}}

// messagesOfOtherLengths: a message of another length than its Recv ends the job, and says so.
func messagesOfOtherLengths(t *testing.T) {
	env := []string{"FAKECUDA_SHARED=1", "FAKECUDA_PEERS=1", "FAKECUDA_DELAY=0"}
	for what, n := range otherLengths {
		status, out := run(t, 2, what, env, "--device", "cuda", "--collectives", "nccl")
		want := fmt.Sprintf("a message from rank 0 has %d bytes, and Recv takes %d", 4*n[0], 4*n[1])
		if status != 1 || strings.Count(out, want) != 1 || !strings.Contains(out, "waiting at spmd/messages_test.go:") {
			t.Errorf("%s: status %d, want %q\n%s", what, status, want, out)
		}
	}
}

func otherLength(w *spmd.World, what string) error {
	n := otherLengths[what]
	x, err := spmd.Alloc[float32](w, max(n[0], n[1]))
	if err != nil {
		return err
	}
	if w.Rank() == 0 {
		err = spmd.Send(w.Comm(), x.Slice(0, n[0]), 1)
	} else {
		err = spmd.Recv(w.Comm(), x.Slice(0, n[1]), 0)
	}
	return errors.Join(err, spmd.Barrier(w.Comm()))
}
