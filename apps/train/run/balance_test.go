package run

import (
	"math"
	"testing"

	"lockstep/apps/train/agree"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Stages are balanced by times that were taken here: the same on all ranks, only where it is asked for and there is
// the memory, and once.
func TestMeasureLayers(t *testing.T) {
	t.Setenv("LOCKSTEP_CACHE", t.TempDir())
	spmdtest.RunInProcess(t, []int{2, 3}, func(t *testing.T, w *spmd.World) {
		o := New()
		o.Cfg = layout.Config{Layers: 8, Heads: 4, Channels: 64, SeqMax: 32, Vocab: 300, Stage: layout.Staging{Stages: 2}}
		o.Seq, o.pp, o.onHost, o.DType = 32, 2, w.OnHost(), "float32"
		for _, none := range []struct {
			balance string
			pp      int
			room    int
		}{{"rates", 2, math.MaxInt}, {"measured", 1, math.MaxInt}, {"measured", 2, 1000}} {
			o.balance, o.pp = none.balance, none.pp
			traintest.NoError(t, o.measureLayers(w, none.room))
			if o.Cfg.Times != (layout.Times{}) {
				t.Errorf("%+v: %+v were measured", none, o.Cfg.Times)
			}
		}
		o.balance = "measured"
		for range 20 { // on a busy machine they may vary too much
			traintest.NoError(t, o.measureLayers(w, math.MaxInt))
			if o.Cfg.Times.Layer > 0 {
				break
			}
		}
		x := o.Cfg.Times
		if quarters := 4 * x.Head / x.Layer; x.Layer <= 0 || math.Abs(quarters-math.Round(quarters)) > 1e-6 {
			t.Errorf("measured %+v", x)
		}
		again := New()
		again.Cfg, again.Seq, again.pp, again.onHost, again.DType, again.balance = o.Cfg, o.Seq, o.pp, o.onHost, o.DType, o.balance
		again.Cfg.Times = layout.Times{}
		traintest.NoError(t, again.measureLayers(w, math.MaxInt))
		if again.Cfg.Times != x { // two measurements are never the same to the last bit
			t.Errorf("measured %+v, and later %+v, which was not kept", x, again.Cfg.Times)
		}
		for _, v := range []float64{x.Layer, x.Head} {
			all, err := agree.GatherOne(w, w.Comm(), int64(math.Float64bits(v)))
			traintest.NoError(t, err)
			for rank, bits := range all {
				if uint64(bits) != math.Float64bits(v) {
					t.Errorf("rank %d has %v, rank %d another time", w.Rank(), v, rank)
				}
			}
		}
	})
}

// What is measured decides, and how much the stages wait. Where the last stage takes longest, m micro-batches take as long
// as one in both stages, and m - 1 in the last.
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
		cfg := layout.Config{Layers: 8, Heads: 4, Channels: 64, SeqMax: 32, Vocab: 300, Stage: layout.Staging{Stages: 2, Micro: tc.micro, Index: 1}, Times: layout.Times{Layer: 1, Head: tc.head}}
		if got := cfg.Divided(32); got != tc.want {
			t.Errorf("a head as long as %v layers: %s, want %s", tc.head, got, tc.want)
		}
		if got := cfg.Idle(32); math.Abs(got-tc.idle) > 1e-9 {
			t.Errorf("a head as long as %v layers, %d micro-batches: %v of the time is lost, want %v", tc.head, tc.micro, got, tc.idle)
		}
	}
}
