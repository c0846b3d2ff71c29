package spmd_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// held makes a stream wait until release is called: on the host by what runs there as a kernel.
func held(t *testing.T, s *spmd.Stream) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	if s.World().OnHost() {
		must(t, library.New("held", nil, func(spmd.Args) error { <-gate; return nil }).Call(s, 0))
	} else {
		must(t, s.HostFunc(func() error { <-gate; return nil }))
	}
	return func() { close(gate) }
}

// TestHostWaitsForStreams: what comes behind the streams' commands on a buffer waits for no other
// stream, and for no other buffer's work. Many streams may use one buffer, and a stream may open in
// the place of another.
func TestHostWaitsForStreams(t *testing.T) {
	everyKind(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		const n = 1000
		x, other := alloc[float32](t, w, n), alloc[float32](t, w, n)
		must(t, errors.Join(x.SetAll(1), other.SetAll(3)))
		var streams []*spmd.Stream
		var release []func()
		for i := range 12 {
			o := stream(t, w, fmt.Sprint("stream ", i))
			streams, release = append(streams, o), append(release, held(t, o))
			must(t, spmd.Fill(o, x.Slice(i, i+1), float32(100+i)))
		}
		if must(t, spmd.AllReduce(w.Comm(), other, other, spmd.Max)); other.At(0) != 3 {
			t.Fatal("a buffer that no stream uses has changed")
		}
		done := make(chan []float32, 1)
		go func() {
			all := make([]float32, n)
			if err := errors.Join(spmd.AllReduce(w.Comm(), x, x, spmd.Max), x.CopyTo(all)); err != nil {
				t.Error(err)
			}
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
		for range 20 {
			o := stream(t, w, "again")
			must(t, spmd.Fill(o, x, 4))
			if v := x.At(n - 1); v != 4 {
				t.Fatalf("a new stream's 4 is %v", v)
			}
			must(t, o.Close())
		}
		must(t, errors.Join(x.Free(), other.Free()))
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
	spmdtest.Must(b, spmd.Local(b.Context(), spmdtest.Config(), 1, read))
}
