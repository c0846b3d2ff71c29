package cuda

import (
	"errors"
	"testing"
	"time"

	"lockstep/cuda/nvrtc"
)

// lasting is a kernel that takes so many nanoseconds.
const lasting = `
static __device__ unsigned long long now() {
	unsigned long long t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}
extern "C" __global__ void lasts(unsigned long long ns) {
	unsigned long long start = now();
	while (now() - start < ns) {}
}
`

// Events in a graph say how long its parts take. A part takes no less than its kernel. -v says how
// much longer, and the events' cost for the graph.
func TestGPUGraphRecords(t *testing.T) {
	d := openGPU(t)
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	major, minor := d.Capability()
	m := try(d.LoadModule(try(nvrtc.Compile("lasts.cu", lasting, nvrtc.Options{Capability: 10*major + minor}))(t)))(t)
	k := try(m.Function("lasts"))(t)
	s := newStream(t, d)
	parts := []time.Duration{200, 5, 50, 5, 20, 100, 5, 400, 30, 10} // us
	const rounds = 20
	one := [3]int{1, 1, 1}
	var ends [][]Node
	must(t, s.BeginCapture(Relaxed))
	for range rounds {
		for _, us := range parts {
			must(t, s.Launch(k, one, one, 0, []uint64{uint64(us * time.Microsecond)}))
			list := make([]Node, 8)
			ends = append(ends, list[:try(s.CaptureEnds(list))(t)])
		}
	}
	g := try(s.EndCapture())(t)
	plain := try(g.Instantiate())(t)
	events := []*Event{try(d.NewEvent(true))(t)}
	must(t, g.Records(events[0]))
	for _, after := range ends {
		events = append(events, try(d.NewEvent(true))(t))
		must(t, g.Records(events[len(events)-1], after...))
	}
	timed := try(g.Instantiate())(t)
	before, after := try(d.NewEvent(true))(t), try(d.NewEvent(true))(t)
	run := func(x *Exec) time.Duration {
		must(t, errors.Join(before.Record(s), x.Launch(s), after.Record(s), s.Synchronize()))
		return try(after.Elapsed(before))(t)
	}
	run(plain)
	run(timed)
	whole, split := run(plain), run(timed)
	took := make([]time.Duration, len(parts))
	for i := range ends {
		got, want := try(events[i+1].Elapsed(events[i]))(t), parts[i%len(parts)]*time.Microsecond
		if got < want-2*time.Microsecond { // the resolution of both clocks
			t.Errorf("part %d took %v, its kernel alone takes %v", i, got, want)
		}
		took[i%len(parts)] += got / rounds
	}
	each := (split - whole) / time.Duration(len(ends))
	for i, us := range parts {
		t.Logf("%v: %v, without the event %v", us*time.Microsecond, took[i], took[i]-each)
	}
	t.Logf("the graph takes %v, with %d events %v: %v for each", whole, len(events), split, each)
	for _, e := range append(events, before, after) {
		must(t, e.Close())
	}
	must(t, errors.Join(g.Close(), plain.Close(), timed.Close(), m.Close()))
}
