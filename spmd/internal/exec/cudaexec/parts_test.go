package cudaexec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/internal/trace"
)

// partsOfGraphs: the summary has the time of each command of a graph, or says that it does not know
// it, where the driver's events do not say that. What the graph computes, and how often, is the
// same.
func partsOfGraphs(t *testing.T) {
	for _, tc := range []struct {
		name, env, why string
	}{
		{name: "timed"},
		{"records that come late", "FAKECUDA_LATE=100", "event 1 came 10"},
		{"records that take long", "FAKECUDA_SLOW=30", "each event took 3"}, // seconds
		{"a driver without edges", "FAKECUDA_FAIL=cuGraphAddDependencies_v2=801", "CUDA_ERROR_NOT_SUPPORTED"},
	} {
		t.Run(tc.name, func(t *testing.T) { partsOfGraph(t, tc.env, tc.why) })
	}
}

// partsOfGraph replays a graph that forks, on two queues in turn. It holds two calls of 3 seconds,
// the second on a kernel that may start early, beside one of 5. Then come a call of a communicator,
// a function of the host, a copy of nothing, and a copy.
func partsOfGraph(t *testing.T, env, why string) {
	const replays = 100 // of which 8, 16, 32 and 64 are timed
	g, err := Open(0)
	must(t, err)
	tr := trace.New(trace.Options{Summary: true, Parts: true})
	tr.Thread("calls")
	d := NewDevice(g, exec.NewKernel("fill", kernels.Source{}, nil), control.NewTickets(), func(error) {})
	var said bytes.Buffer
	log := zerolog.New(&said)
	d.Log, d.Trace = &log, tr
	must(t, d.OpenStaging())
	m, err := g.Dev.LoadModule([]byte("image"))
	must(t, err)
	library := func(name string, seconds int) *exec.Library {
		f, err := m.Function(fmt.Sprintf("lasts_%d", seconds))
		must(t, err)
		one := [3]int{1, 1, 1}
		return &exec.Library{Name: name, Device: func(q exec.Queue, _ []exec.Arg, _ unsafe.Pointer, n int) error {
			if n > 0 {
				return q.(*Queue).h.LaunchEarly(f, one, one, 0, nil)
			}
			return q.(*Queue).h.Launch(f, one, one, 0, nil)
		}, Describe: func(exec.Args) (string, int) { return name, 1000 * seconds }}
	}
	three, five := library("three", 3), library("five", 5)
	call := func(q *Queue, l *exec.Library, early int) {
		t.Helper()
		c, err := q.Begin(exec.DoLibrary)
		must(t, err)
		c.Library, c.N = l, early
		must(t, q.Enqueue(c))
	}
	a, b := queueOf(t, d, "a"), queueOf(t, d, "b")
	x, y, z := memory(t, d, 4, 1), memory(t, d, 4, 0), memory(t, d, 4, 0)
	runs := 0
	if env != "" {
		t.Setenv(strings.SplitN(env, "=", 2)[0], strings.SplitN(env, "=", 2)[1])
	}
	capture, err := exec.NewCapture(d.NewBuilder(), a)
	must(t, err)
	call(a, three, 0)
	n, err := a.Lane().Record()
	must(t, err)
	must(t, capture.Wait(b, n))
	call(b, five, 0)
	call(a, three, 1)
	n, err = b.Lane().Record()
	must(t, err)
	must(t, capture.Wait(a, n))
	enqueue(t, a, &fakeCall{dst: z, src: x, n: 4})
	c, err := a.Begin(exec.DoFunc)
	must(t, err)
	c.Func = func() error { runs++; return nil }
	must(t, a.Enqueue(c))
	copies(t, a, y, z, 0)
	copies(t, a, y, z, 4)
	must(t, capture.End(true))
	call(a, five, 0) // and once outside of it
	must(t, a.End().Wait())
	if got := tr.Summary(0, nil, nil).Works["five"].Count; got != 1 {
		t.Errorf("after the wait the summary has five %d times, want once", got)
	}
	for i := range replays {
		q := []*Queue{a, b}[i%2]
		must(t, capture.Launch(q))
		must(t, q.End().Wait())
		q.catchUp()
	}
	if got := read(t, d, y, 1)[0]; got != 1 || runs != replays {
		t.Errorf("the graph copied %v, and called the host %d times", got, runs)
	}
	must(t, capture.Drop(d))
	d.Harvest()
	works := tr.Summary(0, nil, nil).Works
	// The double runs in the order of the capture what may run side by side: the second of three
	// waits for five.
	want := map[string]trace.Total{
		"three": {Count: 2 * replays, Bytes: 2 * replays * 3000, Nanos: replays * (3e9 + 5e9 + 3e9),
			InGraph: 2 * replays},
		"five":     {Count: replays + 1, Bytes: (replays + 1) * 5000, Nanos: replays * 5e9, InGraph: replays},
		"Copy":     {Count: 2*replays + 4, Bytes: replays*16 + 3*16 + 4, InGraph: 2 * replays},
		"HostFunc": {Count: replays, InGraph: replays},
	}
	for name, w := range want {
		if why != "" {
			w.Nanos = 0
		}
		got := works[name]
		if got.Count != w.Count || got.Bytes != w.Bytes || got.InGraph != w.InGraph ||
			math.Abs(got.Nanos-w.Nanos) > 0.02*w.Nanos+0.1e9*replays || (got.Timed == 0) != (why != "") {
			t.Errorf("%s: %+v, want %+v", name, got, w)
		}
	}
	if lines := strings.Count(said.String(), "\n"); lines > 1 || (lines == 1) != (why != "") ||
		!strings.Contains(said.String(), why) {
		t.Errorf("the log has %s, want %q", said.String(), why)
	}
	must(t, errors.Join(m.Close(), d.Close()))
}
