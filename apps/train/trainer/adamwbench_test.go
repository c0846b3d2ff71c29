package trainer

import (
	"fmt"
	"sync"
	"testing"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// BenchmarkAdamW times the update of GPT-2 124M and the norm of its gradient. Beside them stands
// the time of a copy of as many bytes, as on an H200:
//
//	go test ./apps/train/trainer -run '^$' -bench . -benchtime 5x
//
// SPMDTEST_DEVICE=cuda takes a GPU, with copies of the weights in bfloat16.
func BenchmarkAdamW(b *testing.B) {
	w, err := benchWorld()
	testkit.Must(b, err)
	if w.OnHost() {
		benchAdamW[float32](b, w, 0)
	} else {
		benchAdamW[spmd.BF16](b, w, 2)
	}
}

// benchWorld stays open until the process ends: MPI starts only once.
var benchWorld = sync.OnceValues(func() (*spmd.World, error) { return spmd.Open(spmd.Config{LogLevel: "error"}) })

func benchAdamW[A interface{ float32 | spmd.BF16 }](b *testing.B, w *spmd.World, copied float64) {
	cfg := layout.Presets["gpt2"]
	cfg.Vocab = 50257
	m, err := gpt.NewModel[A](w, cfg, 1, 1)
	testkit.Must(b, err)
	b.Cleanup(func() { _ = m.Close() })
	o, err := NewAdamW(&m.State, w.Comm(), DefaultAdam)
	testkit.Must(b, err)
	b.Cleanup(func() { _ = o.Close() })
	s, err := w.NewStream("bench")
	testkit.Must(b, err)
	b.Cleanup(func() { _ = s.Close() })
	testkit.Must(b, m.Init(1))
	testkit.Must(b, m.Grads.SetAll(1e-3))
	b.Run(fmt.Sprintf("%dM", cfg.ParamCount()/1e6), func(b *testing.B) {
		for range b.N {
			testkit.Must(b, o.Step(s, 1e-4))
		}
		testkit.Must(b, s.Synchronize())
		each := b.Elapsed().Seconds() / float64(b.N)
		b.ReportMetric(each*1e3, "ms/step")
		if !w.OnHost() {
			const copyRate = 4.3e12
			floor := float64(m.Weights.Len()) * (8*4 + copied) / copyRate
			b.ReportMetric(floor*1e6, "floor-us")
			b.ReportMetric(100*floor/each, "%ofbest")
		}
	})
}
