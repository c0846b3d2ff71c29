package spmd_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// held makes a stream wait until release is called.
func held(t *testing.T, s *spmd.Stream) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	must(t, s.HostFunc(func() error { <-gate; return nil }))
	return func() { close(gate) }
}

// TestHostWaitsForStreams: a read or write of a buffer on the host comes behind the streams'
// commands on it. It waits for no other stream, and for no other buffer's work.
func TestHostWaitsForStreams(t *testing.T) {
	everyKind(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		const n = 1000
		s, idle := stream(t, w, "busy"), alloc[float32](t, w, n)
		x, err := spmd.AllocPinned[float32](w, n)
		must(t, err)
		on := w.Comm().On(s)
		sevens := func() error { return spmd.Fill(s, x, 7) }
		g, err := s.Capture(sevens)
		must(t, err)
		uses := map[string]func() error{
			"Fill": sevens,
			"Copy": func() error {
				return errors.Join(spmd.Fill(s, idle, 7), spmd.Copy(s, x.Slice(1, n), idle.Slice(1, n)),
					spmd.Fill(s, x, 7))
			},
			"AllReduce": func() error { return errors.Join(sevens(), spmd.AllReduce(on, x, x, spmd.Max)) },
			"Group": func() error {
				return errors.Join(sevens(), on.Group(func() error { return spmd.AllReduce(on, x, x, spmd.Max) }))
			},
			"graph": func() error { return g.Launch(s) },
		}
		out := make([]float32, n)
		ok := func(err error) { // in another goroutine
			if err != nil {
				t.Error(err)
			}
		}
		accesses := []struct {
			name string
			do   func() float32
			want float32 // of element 2 at the end
		}{
			{"At", func() float32 { return x.At(2) }, 7},
			{"CopyTo", func() float32 { ok(x.CopyTo(out)); return out[2] }, 7},
			{"Host", func() float32 { return x.Host()[2] }, 7},
			{"a part's At", func() float32 { return x.Slice(1, 5).At(1) }, 7},
			{"Set", func() float32 { x.Set(2, 9); return 9 }, 9},
			{"CopyFrom", func() float32 { out[2] = 8; ok(x.CopyFrom(out)); return 8 }, 8},
			{"SetAll", func() float32 { ok(x.SetAll(5)); return 5 }, 5},
		}
		for _, name := range []string{"Fill", "Copy", "AllReduce", "Group", "graph"} {
			for _, a := range accesses {
				must(t, idle.SetAll(3))
				must(t, x.SetAll(1))
				release := held(t, s)
				if name == "Copy" && a.name == "At" && idle.At(0) != 3 { // nothing of it is enqueued yet
					t.Fatal("a buffer that no stream uses has changed")
				}
				must(t, uses[name]())
				got := make(chan float32, 1)
				go func() { got <- a.do() }()
				early := false
				for range 200 {
					runtime.Gosched()
					select {
					case v := <-got:
						early = true
						got <- v
					default:
					}
				}
				release()
				v := <-got
				must(t, s.Synchronize())
				if early || v != a.want || x.At(2) != a.want {
					t.Fatalf("rank %d: %s while %s is enqueued gives %v and leaves %v, want %v; before "+
						"the stream was there: %v",
						w.Rank(), a.name, name, v, x.At(2), a.want, early)
				}
				must(t, spmd.Barrier(w.Comm()))
			}
		}
		// Many streams use one buffer.
		var streams []*spmd.Stream
		var release []func()
		for i := range 12 {
			o := stream(t, w, fmt.Sprint("stream ", i))
			streams, release = append(streams, o), append(release, held(t, o))
			must(t, spmd.Fill(o, x.Slice(i, i+1), float32(100+i)))
		}
		done := make(chan []float32, 1)
		go func() {
			all := make([]float32, n)
			ok(x.CopyTo(all))
			done <- all
		}()
		for _, fn := range release {
			runtime.Gosched()
			fn()
		}
		for i, v := range (<-done)[:12] {
			if v != float32(100+i) {
				t.Fatalf("of stream %d came %v", i, v)
			}
		}
		for _, o := range streams {
			must(t, o.Close())
		}
		// A stream that opens in the place of one that was used long.
		for range 20 {
			o := stream(t, w, "again")
			must(t, spmd.Fill(o, x, 4))
			if v := x.At(n - 1); v != 4 {
				t.Fatalf("a new stream's 4 is %v", v)
			}
			must(t, o.Close())
		}
		must(t, errors.Join(g.Close(), s.Close(), x.Free(), idle.Free()))
	})
}

// TestHostInCapture: a buffer of a capture is refused, as its values are those of no moment; others
// are not. In a function of HostFunc nobody waits for the stream that runs it.
func TestHostInCapture(t *testing.T) {
	everyKind(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		x, err := spmd.AllocPinned[int32](w, 4)
		must(t, err)
		y := alloc[int32](t, w, 4)
		must(t, y.SetAll(6))
		const refused = "CopyTo: a stream that uses the buffer is being captured"
		g, err := s.Capture(func() error {
			must(t, x.SetAll(2)) // before it is used
			if err := spmd.Fill(s, x, 3); err != nil {
				return err
			}
			err := x.CopyTo(make([]int32, 4))
			if err == nil || !strings.Contains(err.Error(), refused) ||
				!strings.Contains(err.Error(), "settle_test.go:") {
				t.Errorf("%v, want %s", err, refused)
			}
			if v := y.At(0); v != 6 {
				t.Errorf("a buffer outside of the capture is %d", v)
			}
			return nil
		})
		must(t, err)
		if v := x.At(0); v != 2 {
			t.Errorf("after the capture it is %d", v)
		}
		must(t, g.Launch(s))
		seen := int32(0)
		must(t, s.HostFunc(func() error { seen = x.Host()[0]; return nil }))
		must(t, spmd.Fill(s, x, 5))
		must(t, s.Synchronize())
		if seen != 3 || x.At(0) != 5 {
			t.Errorf("the function saw %d, and then it is %d", seen, x.At(0))
		}
		must(t, errors.Join(g.Close(), s.Close(), x.Free(), y.Free()))
	})
}

// BenchmarkAt is an element that a stream has used, with nothing pending.
func BenchmarkAt(b *testing.B) {
	read := func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("s")
		if err != nil {
			return err
		}
		x, err := spmd.AllocPinned[float32](w, 8)
		if err = errors.Join(err, spmd.Fill(s, x, 1), s.Synchronize()); err != nil {
			return err
		}
		sum := float32(0)
		for b.Loop() {
			sum += x.At(3)
		}
		if sum == 0 {
			return errors.New("the stream has filled nothing")
		}
		return nil
	}
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, read); err != nil {
		b.Fatal(err)
	}
}
