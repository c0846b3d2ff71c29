package trainer

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

// refOrthogonal returns g, of rows of n, over its norm and through the polynomials, in float64.
func refOrthogonal(g []float64, n int) []float64 {
	norm := 0.0
	for _, v := range g {
		norm += v * v
	}
	rows := len(g) / n
	x := make([][]float64, rows)
	for i := range x {
		for _, v := range g[i*n : (i+1)*n] {
			x[i] = append(x[i], v/(math.Sqrt(norm)+1e-7))
		}
	}
	flip := func(x [][]float64) [][]float64 {
		y := make([][]float64, len(x[0]))
		for j := range y {
			for i := range x {
				y[j] = append(y[j], x[i][j])
			}
		}
		return y
	}
	times := func(a, b [][]float64) [][]float64 {
		y := make([][]float64, len(a))
		for i := range y {
			sums := make([]float64, len(b[0]))
			for k, v := range a[i] {
				for j, w := range b[k][:len(sums)] {
					sums[j] += v * w
				}
			}
			y[i] = sums
		}
		return y
	}
	high := rows > n
	if high {
		x = flip(x)
	}
	for _, p := range [][3]float64{
		{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377}, {3.7418, -5.5913, 2.3037}, {2.8769, -3.1427, 1.2046},
		{2.8366, -3.0525, 1.2012},
	} {
		a := times(x, flip(x))
		aa := times(a, a)
		for i := range a {
			for j := range a {
				a[i][j] = p[1]*a[i][j] + p[2]*aa[i][j]
			}
		}
		ax := times(a, x)
		for i := range x {
			for j := range x[i] {
				x[i][j] = p[0]*x[i][j] + ax[i][j]
			}
		}
	}
	if high {
		x = flip(x)
	}
	return slices.Concat(x...)
}

// Muon, and AdamW beside it, agree with the formulas in float64, on ranks that share the work
// unevenly. All ranks have the same bits, and steps from a graph have them, too.
func TestMuon(t *testing.T) {
	run, ranks := spmdtest.RunInProcess, []int{3}
	if spmdtest.Device() != "host" {
		run, ranks = spmdtest.Run, []int{2, 3, 4}
	}
	t.Run("bfloat16", func(t *testing.T) { run(t, ranks, testMuon[spmd.BF16]) })
	t.Run("float32", func(t *testing.T) { testkit.Only(t, "types of Muon's steps"); run(t, ranks, testMuon[float32]) })
	spmdtest.CompareKernels(t) // which are the same on any number of ranks
	t.Run("float32 alone", func(t *testing.T) { run(t, []int{1}, testMuon[float32]) })
	t.Run("bfloat16 alone", func(t *testing.T) {
		testkit.Only(t, "types of Muon's kernels")
		run(t, []int{1}, testMuon[spmd.BF16])
	})
}

func testMuon[A ops.Act](t *testing.T, w *spmd.World) {
	cfg := traintest.SmallModern
	cfg.Channels = 80 // matrices of several chunks
	p := traintest.RandomParams(cfg, 1)
	adam := DefaultMuonAdam
	adam.WeightDecay, adam.Clip = 0.2, 20
	adam.Muon = &MuonConfig{Peak: 0.04, Embeddings: 0.3, Heads: 0.005, Vectors: 0.02}
	rates := map[layout.Family]float64{layout.Matrices: 0.04, layout.Embeddings: 0.3, layout.Heads: 0.005,
		layout.Vectors: 0.02}
	// Products of bfloat16 move each singular value a little away from that of float64.
	bound := 1e-4
	if ops.IsHalf[A]() {
		bound = 0.04
	}
	var weights [2][]float32
	var wants []map[string][]float64 // after each step, on rank 0
	for graphed := range weights {
		m, err := gpt.NewModel[A](w, cfg, 1, 8)
		traintest.NoError(t, err)
		s, err := w.NewStream("test")
		traintest.NoError(t, err)
		traintest.LoadParams(t, m.Params, m.Weights, p)
		traintest.NoError(t, m.Refresh(s), m.Loss.SetAll(1))
		o, err := NewAdamW(&m.State, w.Comm(), adam)
		traintest.NoError(t, err)
		body := func() error { return o.Apply(s) }
		if graphed == 1 {
			if w.Comm().Capturable() != nil && w.Size() > 1 {
				return
			}
			// The first step loads everything.
			traintest.NoError(t, body(), s.Synchronize(), o.M.SetAll(0), o.V.SetAll(0), o.Start(0, 0))
			traintest.LoadParams(t, m.Params, m.Weights, p)
			g, err := s.Capture(body)
			traintest.NoError(t, err)
			body = func() error { return g.Launch(s) }
		}
		want, m1, m2 := map[string][]float64{}, traintest.ZeroLike(p), traintest.ZeroLike(p)
		for name, x := range p {
			want[name] = slices.Clone(x)
		}
		for step, size := range []float64{0.01, 1, 0.1} {
			lr := 0.04 / float64(step+1)
			norm, g := 0.0, make([]float32, m.Grads.Len())
			for i, q := range m.Params {
				copy(g[q.Off:], traintest.RandomFloats(q.Len, size, uint64(10*step+i)))
			}
			for _, v := range g {
				norm += float64(v) * float64(v)
			}
			factor := min(1, adam.Clip/math.Sqrt(norm))
			traintest.NoError(t, m.Grads.CopyFrom(g), o.Prepare(s, lr), body(), s.Synchronize())
			mu := 0.85 + 0.1*float64(step)/300
			for _, q := range m.Params {
				if w.Rank() > 0 || graphed > 0 {
					break
				}
				x, a, b := want[q.Name], m1[q.Name], m2[q.Name]
				family := cfg.Family(q)
				direction := make([]float64, q.Len)
				for i := range x {
					gi := float64(g[q.Off+i]) * factor
					if family == layout.Matrices {
						a[i] = mu*a[i] + (1-mu)*gi
						direction[i] = mu*a[i] + (1-mu)*gi
						continue
					}
					a[i] = 0.8*a[i] + 0.2*gi
					b[i] = 0.95*b[i] + 0.05*gi*gi
					k := float64(step + 1)
					decay := 0.0
					if len(q.Shape) == 2 {
						decay = adam.WeightDecay
					}
					x[i] -= lr / 0.04 * rates[family] *
						(a[i]/(1-math.Pow(0.8, k))/(math.Sqrt(b[i]/(1-math.Pow(0.95, k)))+1e-10) + decay*x[i])
				}
				if family == layout.Matrices {
					u := refOrthogonal(direction, q.Shape[1])
					for i := range x {
						x[i] -= lr*adam.WeightDecay*x[i] +
							lr*math.Sqrt(max(1, float64(q.Shape[0])/float64(q.Shape[1])))*u[i]
					}
				}
			}
			if w.Rank() == 0 && graphed == 0 {
				wants = append(wants, map[string][]float64{})
				for name, x := range want {
					wants[step][name] = slices.Clone(x)
				}
			}
			weights[graphed] = traintest.ValuesOf(t, m.Weights)
			for _, q := range m.Params {
				if w.Rank() > 0 { // which has rank 0's bits
					break
				}
				got, off, moved := weights[graphed][q.Off:q.Off+q.Len], 0.0, 0.0
				for i, v := range wants[step][q.Name] {
					e := float64(got[i]) - v
					off += e * e
					moved += (v - p[q.Name][i]) * (v - p[q.Name][i])
				}
				if e := math.Sqrt(off / moved); !(e < bound) {
					t.Errorf("%s after %d steps: %.2g of the way that it has moved away", q.Name, step+1, e)
				}
			}
			half := traintest.ValuesOf(t, m.Half)
			for i := range half {
				if half[i] != spmd.ToBF16(weights[graphed][i]) {
					t.Fatalf("weight %d is %v, its copy %v", i, weights[graphed][i], half[i].Float32())
				}
			}
		}
		all, err := hostdata.AllGather(w.Comm(), weights[graphed])
		traintest.NoError(t, err)
		if !slices.Equal(all[0], weights[graphed]) {
			t.Error("the weights differ from rank 0's")
		}
		// A gradient that is not finite changes nothing.
		traintest.NoError(t, m.Grads.SetAll(float32(math.Inf(1))), o.Prepare(s, 0.1), body(), s.Synchronize())
		if !slices.Equal(traintest.ValuesOf(t, m.Weights), weights[graphed]) {
			t.Error("an infinite gradient changed the weights")
		}
		if need, took := MomentsNeeded(cfg, adam, ops.IsHalf[A]()), o.space.Bytes; need != took {
			t.Errorf("told %d bytes, took %d", need, took)
		}
	}
	if !slices.Equal(weights[0], weights[1]) {
		t.Error("the steps of a graph differ from those enqueued")
	}
}

func TestStableSchedule(t *testing.T) {
	s := Schedule{Peak: 2, Final: 0.1, Warmup: 2, Steps: 20, Stable: true}
	for _, tc := range []struct {
		step int
		want float64
	}{{0, 1}, {1, 2}, {2, 2}, {10, 2}, {15, 1.05}, {19, 0.29}, {20, 0.1}, {99, 0.1}} {
		if got := s.At(tc.step); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("At(%d) = %v, want %v", tc.step, got, tc.want)
		}
	}
}

// GPT-2's matrices are Muon's, too. Its token embedding, which is the head, and its positions,
// which are added to it, have the head's rate.
func TestFamilies(t *testing.T) {
	of := func(cfg layout.Config) string {
		counts := map[layout.Family]int{}
		params, _, _ := layout.Of(cfg)
		for _, p := range params {
			counts[cfg.Family(p)]++
		}
		return fmt.Sprint(counts)
	}
	if got, want := of(traintest.Small),
		fmt.Sprint(map[layout.Family]int{layout.Matrices: 8, layout.Heads: 2, layout.Vectors: 18}); got != want {
		t.Errorf("GPT-2's form: %s, want %s", got, want)
	}
	if got, want := of(traintest.SmallModern),
		fmt.Sprint(map[layout.Family]int{layout.Matrices: 12, layout.Embeddings: 2, layout.Heads: 1,
			layout.Vectors: 3}); got != want {
		t.Errorf("a modern one: %s, want %s", got, want)
	}
}

// If the ranks share the state, they update it as if each had all, up to the last bits of a
// sum of squares.
func TestMuonSharded(t *testing.T) {
	traintest.OnBothQuickly(t, []int{1, 2, 3}, nil, testMuonSharded[float32], testMuonSharded[spmd.BF16])
}

func testMuonSharded[A ops.Act](t *testing.T, w *spmd.World) {
	cfg := traintest.SmallModern
	cfg.Channels = 80
	adam := DefaultMuonAdam
	adam.WeightDecay, adam.Clip = 0.2, 20
	adam.Muon = &MuonConfig{Peak: 0.04, Embeddings: 0.3, Heads: 0.005, Vectors: 0.02}
	whole, s, o := muonOn[A](t, w, cfg, adam)
	bound := 1e-5
	if ops.IsHalf[A]() {
		bound = 2e-3 // of a rate of 0.04: a direction that rounds to its neighbour
	}
	for _, mode := range []layout.ShardMode{layout.ShardOptimizer, layout.ShardGradients, layout.ShardParameters} {
		cfg.Shard = layout.Sharding{Mode: mode, Rank: w.Rank(), Ranks: w.Size()}
		shared, _, part := muonOn[A](t, w, cfg, adam)
		traintest.NoError(t, whole.Init(3), shared.Init(3), o.M.SetAll(0), o.V.SetAll(0), o.Start(0, 0))
		part.MeasureNorm = func(s *spmd.Stream, norm spmd.Buffer[float32]) error { return spmd.Copy(s, norm, o.Norm) }
		gradients := gpt.Arena{Shared: mode >= layout.ShardGradients, Buffer: shared.Grads}
		if gradients.Shared {
			gradients.Buffer = shared.Sharded.Grads
		}
		weights := gpt.Arena{Shared: mode == layout.ShardParameters, Buffer: shared.Weights}
		if weights.Shared {
			weights.Buffer = shared.Sharded.Weights
		}
		for step := range 2 {
			byName := map[string][]float32{}
			for i, p := range whole.Params {
				g := traintest.RandomFloats(p.Len, 0.1, uint64(10*step+i))
				byName[p.Name] = g
				traintest.NoError(t, whole.Grads.Slice(p.Off, p.Off+p.Len).CopyFrom(g))
			}
			for _, p := range shared.Params {
				skip, have := shared.Of(gradients, p)
				traintest.NoError(t, have.CopyFrom(byName[p.Name][skip:skip+have.Len()]))
			}
			traintest.NoError(t, o.Step(s, 0.04), part.Step(s, 0.04), s.Synchronize())
		}
		byName := map[string]layout.Param{}
		for _, p := range whole.Params {
			byName[p.Name] = p
		}
		for _, p := range shared.Params {
			skip, _, n := shared.Sharded.Own(p.Group, p.Off, p.Off+p.Len)
			_, have := shared.Of(weights, p)
			if !weights.Shared { // others' come with the next passes
				have = have.Slice(skip, skip+n)
			}
			got, want := traintest.ValuesOf(t, have), traintest.ValuesOf(t, whole.Weights)[byName[p.Name].Off:]
			for i, v := range got {
				if !traintest.CloseTo(float64(v), float64(want[skip+i]), bound) {
					t.Fatalf("--shard %v, %s[%d]: %v, where each rank has all %v",
						mode, p.Name, skip+i, v, want[skip+i])
				}
			}
		}
		if need, took := MomentsNeeded(cfg, adam, ops.IsHalf[A]()), part.space.Bytes; need != took {
			t.Errorf("--shard %v: told %d bytes, took %d", mode, need, took)
		}
	}
}

// muonOn returns a modern model and its optimizer, on a stream of w.
func muonOn[A ops.Act](t *testing.T, w *spmd.World, cfg layout.Config,
	adam AdamConfig) (*gpt.State, *spmd.Stream, *AdamW) {
	t.Helper()
	m, err := gpt.NewModel[A](w, cfg, 1, 8)
	traintest.NoError(t, err)
	s, err := w.NewStream("test")
	traintest.NoError(t, err)
	o, err := NewAdamW(&m.State, w.Comm(), adam)
	traintest.NoError(t, err, m.Loss.SetAll(1))
	return &m.State, s, o
}
