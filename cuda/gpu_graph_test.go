package cuda

import (
	"errors"
	"fmt"
	"slices"
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

// Events in a graph, each in front of what follows, say how long its parts take: of kernels that
// follow each other, of those that may start early, and on branches. -v says what the events add.
func TestGPUGraphRecords(t *testing.T) {
	d := openGPU(t)
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	major, minor := d.Capability()
	m := try(d.LoadModule(try(nvrtc.Compile("lasts.cu", lasting, nvrtc.Options{Capability: 10*major + minor}))(t)))(t)
	k := try(m.Function("lasts"))(t)
	for _, tc := range []struct {
		name     string
		branches int
		early    bool
	}{{"one after the other", 1, false}, {"early", 1, true}, {"branches", 3, false}} {
		t.Run(tc.name, func(t *testing.T) { graphRecords(t, d, k, tc.branches, tc.early) })
	}
	must(t, m.Close())
}

// graphRecords times the parts of a graph whose branches begin together and end together.
func graphRecords(t *testing.T, d *Device, k *Function, branches int, early bool) {
	parts := []time.Duration{200, 5, 50, 5, 20, 100, 5, 400, 30, 10} // us
	const rounds = 20
	one := [3]int{1, 1, 1}
	streams := make([]*Stream, branches)
	for i := range streams {
		streams[i] = newStream(t, d)
	}
	s := streams[0]
	launch := s.Launch
	if early {
		launch = s.LaunchEarly
	}
	newEvent := func() *Event {
		e := try(d.NewTimedEvent())(t)
		t.Cleanup(func() { must(t, e.Close()) })
		return e
	}
	ends := make([][]Node, branches)
	fork, join := newEvent(), newEvent()
	must(t, errors.Join(s.BeginCapture(Relaxed), launch(k, one, one, 0, []uint64{1000}), fork.Record(s)))
	list := make([]Node, 8)
	first := list[:try(s.CaptureEnds(list))(t)][0]
	for b, on := range streams {
		if b > 0 {
			must(t, on.Wait(fork))
			launch = on.Launch
		}
		for range rounds {
			for _, us := range parts {
				must(t, launch(k, one, one, 0, []uint64{uint64(us * time.Microsecond)}))
				if n := try(on.CaptureEnds(list))(t); n != 1 {
					t.Fatalf("%d ends", n)
				}
				ends[b] = append(ends[b], list[0])
			}
		}
		if b > 0 {
			must(t, errors.Join(join.Record(on), s.Wait(join)))
		}
	}
	must(t, s.Launch(k, one, one, 0, []uint64{1000}))
	g := try(s.EndCapture())(t)
	plain := try(g.Instantiate())(t)
	begin := newEvent()
	events := make([][]*Event, branches)
	followers := map[Node][]Node{}
	for _, of := range append(slices.Concat(ends...), first) {
		followers[of] = slices.Clone(list[:try(g.Followers(of, list))(t)])
	}
	must(t, g.Records(begin, []Node{first}, followers[first]))
	for b := range ends {
		for _, of := range ends[b] {
			events[b] = append(events[b], newEvent())
			must(t, g.Records(events[b][len(events[b])-1], []Node{of}, followers[of]))
		}
	}
	timed := try(g.Instantiate())(t)
	before, after := newEvent(), newEvent()
	run := func(x *Exec) time.Duration {
		must(t, errors.Join(before.Record(s), x.Launch(s), after.Record(s), s.Synchronize()))
		return try(after.Elapsed(before))(t)
	}
	run(plain)
	run(timed)
	whole, split := run(plain), run(timed)
	each := max(0, split-whole) / time.Duration(rounds*len(parts))
	t.Logf("the graph takes %v, with the events %v: %v for each of a branch", whole, split, each)
	near := func(what string, got, want, within time.Duration) {
		t.Helper()
		if (got - want).Abs() > within+want/100 {
			t.Errorf("%s: %v, want %v within %v and 1 %%", what, got, want, within)
		}
	}
	const resolution, gap = 500 * time.Nanosecond, 1500 * time.Nanosecond // of an event; between kernels
	for b := range events {
		took, from, sum := make([]time.Duration, len(parts)), begin, time.Duration(0)
		for i, e := range events[b] {
			part := try(e.Elapsed(from))(t)
			if want := parts[i%len(parts)] * time.Microsecond; part < want-2*resolution {
				t.Errorf("branch %d, part %d: %v, its kernel alone takes %v", b, i, part, want)
			}
			took[i%len(parts)] += part / rounds
			from, sum = e, sum+part
		}
		if branches > 1 {
			continue // with events, branches run one after the other on an H100
		}
		near(fmt.Sprintf("branch %d, all parts", b), sum, split, 10*gap)
		for i, us := range parts {
			t.Logf("branch %d: %v: %v, without the event %v", b, us*time.Microsecond, took[i], took[i]-each)
			near(fmt.Sprintf("branch %d, part %d", b, i), took[i]-each, us*time.Microsecond, 2*resolution+gap)
		}
	}
	must(t, errors.Join(g.Close(), plain.Close(), timed.Close()))
}
