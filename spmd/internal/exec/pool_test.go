package exec

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
)

// fakeQueue is a double of a queue: the test says how far it has got, or that it gets on
// while it is looked at.
type fakeQueue struct {
	done uint64
	runs bool
	err  error
}

func (q *fakeQueue) Reached(seq uint64) bool {
	reached := q.done >= seq
	if q.runs {
		q.done++
	}
	return reached
}

func (q *fakeQueue) Wait(seq uint64) { q.done = max(q.done, seq) }
func (q *fakeQueue) Failure(seq uint64) error {
	if seq > 10 {
		return q.err
	}
	return nil
}

// Each size has a class that holds it, is aligned, and wastes a quarter at most, of a large one
// 3 %; classes are their own, and do not get less as sizes get more.
func TestSizeClass(t *testing.T) {
	before := 0
	for n := 1; n < 1<<40; n += 1 + n/97 {
		c := SizeClass(n)
		if c < n || c%Alignment != 0 || (n > 4*Alignment && c > n+n/4) || (n > 32<<20 && c > n+n/32) ||
			SizeClass(c) != c || c < before {
			t.Fatalf("SizeClass(%d) = %d", n, c)
		}
		before = c
	}
}

// fakeSource is a double of a source of memory with so many bytes.
func fakeSource(room int) (Source, map[unsafe.Pointer]int) {
	out := map[unsafe.Pointer]int{}
	return Source{What: "fake memory", SlabMax: 1 << 10, SlabSize: 1 << 12,
		Get: func(n int) (unsafe.Pointer, error) {
			if n > room {
				return nil, errors.New("no more")
			}
			room -= n
			b := make([]byte, n)
			out[unsafe.Pointer(&b[0])] = n
			return unsafe.Pointer(&b[0]), nil
		},
		Put: func(p unsafe.Pointer, n int) error {
			if out[p] != n {
				return errors.New("not what was got")
			}
			room += n
			delete(out, p)
			return nil
		}}, out
}

// A released block is handed out again when the queue has passed its mark, and not before.
func TestPoolWaitsForQueues(t *testing.T) {
	var p Pool
	source, held := fakeSource(1 << 20)
	p.Init(source)
	alloc := func(n int) *Block {
		t.Helper()
		b := new(Block)
		testkit.Must(t, p.Alloc(b, n))
		return b
	}
	q := &fakeQueue{done: 3}
	first := alloc(5000)
	p.Release(first, []Point{{q, 4}})
	if second := alloc(5000); second.Ptr == first.Ptr {
		t.Error("a block that a queue uses was handed out")
	}
	q.done = 4
	if third := alloc(5000); third.Ptr != first.Ptr {
		t.Error("a block that is free was not handed out")
	}
	if a, b := alloc(100), alloc(100); len(held) != 3 || a.Ptr == b.Ptr {
		t.Errorf("two small blocks came from %d chunks, want 3 in all", len(held))
	}
	if err := p.Close(); err != nil || len(held) != 0 || !p.Closed() {
		t.Errorf("Close leaves %d chunks, error %v", len(held), err)
	}
	if err := p.Alloc(new(Block), 1); err == nil {
		t.Error("a closed pool hands out memory")
	}
}

// Where memory is short the pool waits for queues and gives back what lies unused before it
// fails, and the failure has the numbers.
func TestPoolIsShort(t *testing.T) {
	var p Pool
	source, _ := fakeSource(20 << 10)
	source.Room = func() string { return "nothing free" }
	p.Init(source)
	q := &fakeQueue{}
	var a, b Block
	testkit.Must(t, errors.Join(p.Alloc(&a, 16<<10), p.Alloc(&b, 4<<10)))
	err := p.Alloc(new(Block), 4<<10)
	const want = "out of fake memory: asked for 4096 bytes; nothing free, 20480 in use, 20480 held by the pool: no more"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
	q.runs = true
	p.Release(&a, []Point{{q, 5}}) // reached after some looks
	var c Block
	if err := p.Alloc(&c, 8<<10); err != nil {
		t.Errorf("with 16 KiB released: %v", err)
	}
}

// AllocAgreed takes the block of the class that was released first, if all ranks mean it.
func TestPoolAgreed(t *testing.T) {
	var p Pool
	source, _ := fakeSource(1 << 20)
	p.Init(source)
	same := true
	var asked []int64
	alloc := func() *Block {
		t.Helper()
		b := new(Block)
		err := p.AllocAgreed(b, 5000, func(place int64) (bool, error) {
			asked = append(asked, place)
			return same, nil
		})
		testkit.Must(t, err)
		return b
	}
	a, b := alloc(), alloc()
	p.Release(b, nil)
	p.Release(a, nil)
	if c := alloc(); c.Ptr != b.Ptr || asked[2] != 1<<40 {
		t.Errorf("asked for places %v", asked)
	}
	same = false
	if d := alloc(); d.Ptr == a.Ptr || asked[3] != 0 {
		t.Errorf("a block was taken that another rank does not mean; asked for places %v", asked)
	}
	err := p.AllocAgreed(new(Block), 5000, func(int64) (bool, error) { return false, errors.New("apart") })
	if err == nil || err.Error() != "apart" {
		t.Errorf("%v", err)
	}
}

// A wait ends at the failure of a queue that is waited for.
func TestWaitFor(t *testing.T) {
	q := &fakeQueue{done: 5, err: errors.New("broken")}
	if err := WaitFor([]Point{{q, 5}, {q, 3}}); err != nil {
		t.Error(err)
	}
	if err := WaitFor([]Point{{q, 5}, {q, 11}}); !errors.Is(err, q.err) {
		t.Errorf("%v", err)
	}
	if err := (Point{}).Wait(); err != nil {
		t.Error(err)
	}
}

// TestTrimThatFails: memory that could not be given back is handed out again.
func TestTrimThatFails(t *testing.T) {
	source, out := fakeSource(3 << 20)
	put := source.Put
	source.Put = func(unsafe.Pointer, int) error { return errors.New("not now") }
	var p Pool
	p.Init(source)
	var a, b, c Block
	testkit.Must(t, p.Alloc(&a, 1<<20))
	was := a.Ptr
	p.Release(&a, nil)
	if err := p.Alloc(&b, 3<<20); err == nil { // for which what is free would have to go
		t.Fatal("more memory than there is")
	}
	if err := p.Alloc(&c, 1<<20); err != nil || c.Ptr != was || len(out) != 1 {
		t.Errorf("the block that stayed is not used again: %v, %d chunks", err, len(out))
	}
	p.Source.Put = put
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
