package telemetry_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

// A sample is at least as long as the step took on the slowest rank, in the order of the steps; the
// sums are those of the samples. In each step another rank is the slowest, and each step is shorter
// than the one before.
func TestMeasureSamples(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		const warmup, iters = 2, 7
		took := make([]float64, iters)
		turn := -warmup
		stats, err := telemetry.Measure(w.Comm(), warmup, iters, func() error {
			start, i := time.Now(), turn
			turn++
			if i < 0 || i%w.Size() != w.Rank() {
				return nil
			}
			for time.Since(start) < time.Duration(iters-i)*500*time.Microsecond {
			}
			took[i] = float64(time.Since(start).Nanoseconds()) / 1e3
			return nil
		})
		spmdtest.Must(t, err)
		all, err := spmd.AllocPinned[float64](w, iters)
		spmdtest.Must(t, err)
		defer all.Free()
		spmdtest.Must(t, all.CopyFrom(took))
		spmdtest.Must(t, spmd.AllReduce(w.Comm(), all, all, spmd.Max))
		us := stats.Samples
		if turn != iters || stats.Iters != iters || len(us) != iters {
			t.Fatalf("%d steps, %d iterations, %d samples", turn, stats.Iters, len(us))
		}
		for i := range us {
			if us[i] < all.At(i) {
				t.Errorf("step %d took %v us, and its sample is %v", i, all.At(i), us[i])
			}
		}
		sorted := slices.Sorted(slices.Values(us))
		if stats.MinUS != sorted[0] || stats.MedianUS != sorted[iters/2] || stats.P99US != sorted[iters-1] ||
			stats.MaxUS != sorted[iters-1] {
			t.Errorf("%+v of %v", stats, us)
		}
		line, err := json.Marshal(stats)
		if err != nil || strings.Contains(strings.ToLower(string(line)), "samples") {
			t.Errorf("%s, %v: samples are for those who ask", line, err)
		}
	})
}

// The samples tell a rank that enqueues a step late, or comes late to its end, from others.
func TestMeasureTellsWhoWasLate(t *testing.T) {
	spmdtest.Run(t, []int{2, 3}, func(t *testing.T, w *spmd.World) {
		const late = 20 * time.Millisecond
		last := w.Rank() == w.Size()-1
		s, turn := spmdtest.Stream(t, w, "s"), 0
		wait := func(yes bool) error {
			for start := time.Now(); yes && time.Since(start) < late; {
			}
			return nil
		}
		stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Calls, 0, 2, func() error {
			turn++
			if turn == 1 {
				return wait(last)
			}
			return s.HostFunc(func() error { return wait(last) })
		})
		spmdtest.Must(t, err)
		us := float64(late.Microseconds())
		if stats.Enqueued[0] < us || stats.Enqueued[1] <= 0 || stats.Samples[1] < us {
			t.Errorf("%v, enqueued after %v", stats.Samples, stats.Enqueued)
		}
		for i, fastest := range stats.Fastest {
			if fastest <= 0 || fastest > stats.Samples[i] {
				t.Errorf("the fastest rank took %v of %v", fastest, stats.Samples[i])
			}
		}
		if stats, err = telemetry.Measure(w.Comm(), 0, 1, func() error { return wait(last) }); err != nil ||
			stats.Samples[0] < us || stats.Enqueued != nil {
			t.Errorf("%+v, %v", stats, err)
		}
	})
}

// The median of an even number of samples lies between two. The 99th percentile is the least that
// 99 % do not exceed. The samples keep their order.
func TestTimingOf(t *testing.T) {
	for _, tc := range []struct{ n, median2, p99 int }{{1, 2, 1}, {2, 3, 2}, {3, 4, 3}, {100, 101, 99},
		{101, 102, 100}, {1000, 1001, 990}} {
		us := make([]float64, tc.n)
		for i := range us {
			us[i] = float64(tc.n - i) // n, n-1, ... 1
		}
		got := telemetry.StatsOf(us)
		if got.Iters != tc.n || got.MinUS != 1 || got.MedianUS != float64(tc.median2)/2 ||
			got.P99US != float64(tc.p99) || got.MaxUS != float64(tc.n) || got.Samples[0] != float64(tc.n) {
			t.Errorf("%d samples: %+v", tc.n, got)
		}
	}
}

// A median between two times in nanoseconds has no more digits than it needs.
func TestMedianDigits(t *testing.T) {
	for _, tc := range []struct {
		us   []float64
		want string
	}{{[]float64{109.007, 109.198}, "109.1025"}, {[]float64{0.1, 0.2}, "0.15"},
		{[]float64{3e8 + 0.001, 3e8 + 0.002}, "300000000.0015"}, {[]float64{2.5e-5}, "0.000025"}} {
		if got := strconv.FormatFloat(telemetry.StatsOf(tc.us).MedianUS, 'f', -1, 64); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.us, got, tc.want)
		}
	}
}

// The loop that times allocates nothing: it would call the collector into somebody's step.
func TestMeasureAllocatesNothing(t *testing.T) {
	spmdtest.RunUnwatched(t, []int{2}, func(t *testing.T, w *spmd.World) {
		var m runtime.MemStats
		least := uint64(1000)
		_, err := telemetry.Measure(w.Comm(), 10, 50, func() error {
			before := m.Mallocs
			runtime.ReadMemStats(&m)
			least = min(least, m.Mallocs-before)
			return nil
		})
		if err != nil || least != 0 {
			t.Errorf("%d allocations in a step, error %v", least, err)
		}
	})
}
