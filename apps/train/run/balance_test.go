package run

import (
	"math"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Times that are measured here balance the stages. They are the same on all ranks. They are
// measured once, only on request, and only if there is the memory.
func TestMeasureLayers(t *testing.T) {
	t.Setenv("LOCKSTEP_CACHE", t.TempDir())
	spmdtest.RunInProcess(t, []int{2, 3}, func(t *testing.T, w *spmd.World) {
		timed := 0
		models := func(one, two float64) timePasses { // of one layer, and of two
			return func(_ *spmd.World, cfg layout.Config, _ int) (float64, error) {
				timed++
				return []float64{one, two}[cfg.Layers-1], nil
			}
		}
		for _, tc := range []struct {
			balance  string
			pp, room int
			one, two float64
			want     layout.Times
			timed    int
		}{
			{"rates", 2, math.MaxInt, 3, 5, layout.Times{}, 0},
			{"measured", 1, math.MaxInt, 3, 5, layout.Times{}, 0},
			{"measured", 2, 1000, 3, 5, layout.Times{}, 0},
			{"measured", 2, math.MaxInt, 3, 3, layout.Times{}, 2},
			{"measured", 2, math.MaxInt, 3, 6.5, layout.Times{}, 2},
			{"measured", 2, math.MaxInt, 3, 5, layout.Times{Layer: 2, Head: 1}, 2},
			{"measured", 2, math.MaxInt, 4, 8, layout.Times{Layer: 2, Head: 1}, 0}, // from the run before
		} {
			o := New()
			o.Cfg = layout.Config{Layers: 8, Heads: 4, Channels: 64, SeqMax: 32, Vocab: 300,
				Stage: layout.Staging{Stages: 2}}
			o.Seq, o.onHost, o.DType, o.balance, o.pp = 32, w.OnHost(), "float32", tc.balance, tc.pp
			timed = 0
			traintest.NoError(t, o.measureLayers(w, tc.room, models(tc.one, tc.two)))
			if o.Cfg.Times != tc.want || timed != tc.timed {
				t.Errorf("%+v: %+v, and %d models were timed", tc, o.Cfg.Times, timed)
			}
		}
		o := New()
		o.Seq, o.onHost, o.DType = 32, w.OnHost(), "float32"
		seconds, err := o.timeHere(w, layout.Config{Layers: 1, Heads: 4, Channels: 64, SeqMax: 32, Vocab: 300}, 2)
		traintest.NoError(t, err)
		all, err := text.GatherOne(w, w.Comm(), int64(math.Float64bits(seconds)))
		traintest.NoError(t, err)
		for rank, bits := range all {
			if v := math.Float64frombits(uint64(bits)); v <= 0 || v != seconds {
				t.Errorf("rank %d has %v, rank %d %v, want one time", w.Rank(), seconds, rank, v)
			}
		}
	})
}

// The measured times decide the division, and how long stages wait. If the last stage takes
// longest, m micro-batches take the time of one in both stages, and of m - 1 in the last.
func TestTimes(t *testing.T) {
	for _, tc := range []struct {
		head  float64
		micro int
		want  string
		idle  float64
	}{
		{0, 1, "4+4", 1. / 2}, {2, 1, "5+3", 1. / 2}, {4, 1, "6+2", 1. / 2}, {100, 1, "7+1", 1. / 2},
		{0, 3, "4+4", 1. / 4}, {4, 3, "6+2", 1. / 4}, {100, 3, "7+1", 1 - 3*108./2/(108+2*101)},
	} {
		cfg := layout.Config{Layers: 8, Heads: 4, Channels: 64, SeqMax: 32, Vocab: 300,
			Stage: layout.Staging{Stages: 2, Micro: tc.micro, Index: 1}, Times: layout.Times{Layer: 1, Head: tc.head}}
		if got := cfg.Divided(32); got != tc.want {
			t.Errorf("a head as long as %v layers: %s, want %s", tc.head, got, tc.want)
		}
		if got := cfg.Idle(32); math.Abs(got-tc.idle) > 1e-9 {
			t.Errorf("a head as long as %v layers, %d micro-batches: %v of the time is lost, want %v",
				tc.head, tc.micro, got, tc.idle)
		}
	}
}
