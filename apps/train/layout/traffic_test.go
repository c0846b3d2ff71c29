package layout

import (
	"math"
	"testing"

	"lockstep/internal/testkit"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(b)) }

// Equally long sections take the time of the slower lane, plus the first or last section
// of the other.
func TestLanesClosed(t *testing.T) {
	for n := 1; n <= 12; n++ {
		for _, work := range []float64{0, 1, 3} {
			for _, wire := range []float64{0.5, 1, 2, 50} {
				N := float64(n)
				gather := make([]float64, n)
				come, leave := make([]use, n), make([]use, n)
				for i := range n {
					gather[i] = wire
					come[i], leave[i] = use{section: i, work: work}, use{section: i, work: work, leaves: wire}
				}
				leave = append(leave, use{section: -1, waits: true})
				beside := wire + (N-1)*max(wire, work) + work
				for slots, want := range map[int]float64{1: N * (wire + work), 2: beside, 4: beside, 100: beside} {
					last := func(x lanes, uses []use) float64 { return x.ends(uses)[len(uses)-1] }
					if got := last(lanes{gather: gather, slots: slots, hides: true}, come); !near(got, want) {
						t.Errorf("%d sections of %v, weights of %v, memory for %d: %v, want %v",
							n, work, wire, slots, got, want)
					}
					if got := last(lanes{slots: slots, hides: true}, leave); !near(got, want) {
						t.Errorf("%d sections of %v, gradients of %v, memory for %d: %v, want %v",
							n, work, wire, slots, got, want)
					}
					if got := last(lanes{gather: gather, slots: slots}, leave); !near(got, N*(2*wire+work)) {
						t.Errorf("%d sections of %v, nothing hidden, memory for %d: %v, want %v",
							n, work, slots, got, N*(2*wire+work))
					}
				}
			}
		}
	}
}

// uniform returns replicas whose layers have sections of equal times.
func uniform(mode ShardMode, stages, layers int, forward, backward, gather, send float64) replicas {
	r := replicas{kept: 0.25, rest: 0.125}
	r.cfg.Shard.Mode, r.cfg.Stage.Stages = mode, stages
	r.share.head = section{forward: 7, backward: 9}
	for range 2 * layers {
		r.share.sections = append(r.share.sections, section{forward: forward, backward: backward})
		r.send = append(r.send, send)
		if mode != ShardOff {
			r.gather = append(r.gather, gather)
		}
	}
	if mode == ShardOff {
		r.kept = 0
	}
	return r
}

// Closed forms give the part of a mode's messages that equally long layers do not hide.
func TestTimesClosed(t *testing.T) {
	const layers, kept, rest, headF, headB = 5, 0.25, 0.125, 7.0, 9.0
	const n, there = 2.0 * layers, 4.0 // all sections; sections whose weights the last pass has left
	for _, tc := range []struct {
		what         string
		mode         ShardMode
		stages       int
		f, b, g, s   float64
		hides        bool
		want         times
		wantSum      float64 // of a micro-batch, where its parts are not told
		fp8, recompu bool
	}{
		{what: "sums behind each section", mode: ShardOff, f: 2, b: 4, s: 3, hides: true,
			want: times{n*2 + headF, headB + n*4, 0, 3 + rest}},
		{what: "sums that take longer", mode: ShardOff, f: 2, b: 4, s: 6, hides: true,
			want: times{n*2 + headF, headB + n*4, 0, n*6 - (n-1)*4 + rest}},
		{what: "sums, nothing hidden", mode: ShardOff, f: 2, b: 4, s: 3,
			want: times{n*2 + headF, headB + n*4, 0, n*3 + rest}},
		{what: "optimizer", mode: ShardOptimizer, f: 2, b: 4, g: 1, s: 3, hides: true,
			want: times{n*2 + headF, headB + n*4, kept + 1, 3 + rest}},
		{what: "optimizer, slow", mode: ShardOptimizer, f: 2, b: 4, g: 5, s: 6, hides: true,
			want: times{n*2 + headF, headB + n*4, kept + n*5 - (n-1)*2, n*6 - (n-1)*4 + rest}},
		{what: "optimizer, weights first", mode: ShardOptimizer, f: 2, b: 4, g: 1, s: 3, hides: true, fp8: true,
			want: times{n*2 + headF, headB + n*4, kept + n, 3 + rest}},
		{what: "optimizer in stages", mode: ShardOptimizer, stages: 2, f: 2, b: 4, g: 1, s: 3, hides: true,
			want: times{n*2 + headF, headB + n*4, kept + n, 3 + rest}},
		{what: "optimizer, nothing hidden", mode: ShardOptimizer, f: 2, b: 4, g: 1, s: 3,
			want: times{n*2 + headF, headB + n*4, kept + n, n*3 + rest}},
		{what: "gradients", mode: ShardGradients, f: 2, b: 4, g: 1, s: 3, hides: true,
			want: times{n*2 + headF, headB + n*4 + 3 + rest, kept + 1, 0}},
		{what: "gradients, slow", mode: ShardGradients, f: 2, b: 4, g: 5, s: 6, hides: true,
			want: times{n*2 + headF, headB + 4 + n*6 + rest, kept + n*5 - (n-1)*2, 0}},
		{what: "parameters", mode: ShardParameters, f: 2, b: 4, g: 1, s: 3, hides: true,
			want: times{1 + n*2 + headF, headB + n*4 + 3 + rest, kept, 0}},
		{what: "parameters, only messages", mode: ShardParameters, g: 2, s: 3, hides: true,
			want: times{n*2 + headF, headB + (n-there)*2 + n*3 + rest, kept, 0}},
		{what: "parameters, nothing hidden", mode: ShardParameters, f: 2, b: 4, g: 1, s: 3,
			want: times{n + n*2 + headF, headB + n*4 + n - there + n*3 + rest, kept, 0}},
		// In a pipeline the weights of a pass come during the pass before.
		{what: "parameters in stages", mode: ShardParameters, stages: 2, f: 2, b: 4, g: 1, s: 3, hides: true,
			want: times{n*2 + headF, headB + n*4 + 3 + rest, kept + 1, 0}},
		{what: "parameters in stages, nothing hidden", mode: ShardParameters, stages: 2, f: 2, b: 4, g: 1, s: 3,
			want: times{n - there + n*2 + headF, headB + n*4 + n - there + n*3 + rest, kept + there, 0}},
	} {
		r := uniform(tc.mode, tc.stages, layers, tc.f, tc.b, tc.g, tc.s)
		if tc.fp8 {
			r.cfg.FP8 = FP8All
		}
		got := r.times(1, hiding(tc.hides))
		if !near(got.forward, tc.want.forward) || !near(got.backward, tc.want.backward) ||
			!near(got.begin, tc.want.begin) || !near(got.end, tc.want.end) {
			t.Errorf("%s: %+v, want %+v", tc.what, got, tc.want)
		}
	}
}

// In a recomputed block the weights of attention come first, and stay for its gradients.
func TestTimesRecomputed(t *testing.T) {
	r := uniform(ShardParameters, 0, 5, 0, 0, 2, 3)
	r.cfg.Recompute = RecomputeBlock
	for i := range r.share.sections {
		r.share.sections[i].again = 1
	}
	// The weights of 6 sections come, and gradients of 10 go. The two last layers' weights are
	// there, and hide what one computes.
	if got, want := r.times(1, shown).backward, 9+10*1+6*2+10*3+0.125; !near(got, want) {
		t.Errorf("nothing hidden: %v, want %v", got, want)
	}
	hidden := r.times(1, hidden).backward
	if least, most := 9+2+6*2+10*3+0.125, 9+10+6*2+10*3+0.125; hidden < least || hidden >= most {
		t.Errorf("beside messages: %v, want from %v to %v", hidden, least, most)
	}
}

// Stages may begin and end later than their passes.
func TestLength(t *testing.T) {
	for _, tc := range []struct {
		stages []times
		micro  int
		want   float64
		bubble float64
	}{
		{[]times{{2, 4, 3, 5}}, 1, 14, 0},
		{[]times{{2, 4, 3, 5}}, 10, 68, 0},
		{[]times{{2, 4, 0, 0}, {2, 4, 0, 0}}, 3, 24, 6. / 24},
		{[]times{{2, 4, 0, 0}, {2, 4, 1, 0}}, 3, 24, 6. / 24}, // hidden, since its first input comes after 2
		{[]times{{2, 4, 0, 0}, {2, 4, 5, 0}}, 3, 27, 6. / 27},
		{[]times{{2, 4, 7, 0}, {2, 4, 5, 0}}, 3, 31, 6. / 31},
		{[]times{{2, 4, 0, 0}, {2, 4, 0, 3}}, 3, 24, 6. / 24}, // the last stage has 4 left when the first ends
		{[]times{{2, 4, 0, 2}, {2, 4, 0, 3}}, 3, 26, 6. / 26},
	} {
		if got, bubble := length(tc.stages, tc.micro); !near(got, tc.want) || !near(bubble, tc.bubble) {
			t.Errorf("%d micro-batches through %v: %v with a bubble of %v, want %v and %v",
				tc.micro, tc.stages, got, bubble, tc.want, tc.bubble)
		}
	}
}

// Without time for messages all modes take the time of their computation. If messages take nearly
// all of the time, a mode takes the time of all bytes between the nodes: 4 bytes of each gradient,
// and of each weight 4 once, or 2 in each pass whose weights have to come.
func TestOnlyMessages(t *testing.T) {
	g, err := ParseGPU("H200")
	testkit.Must(t, err)
	cfg := Presets["gpt2-medium"]
	cfg.Vocab = 50257
	const replicas, micro = 4, 3
	j := Job{Replicas: replicas, Batch: 2, Global: 2 * replicas * micro, Seq: 1024}
	at := func(mode ShardMode, network float64) Estimate {
		m := NodesOf(g, 1)
		m.Network, m.Latency = network, 0
		c := cfg
		c.Shard.Mode = mode
		return m.Step(c, j)
	}
	L, C := float64(cfg.Layers), float64(cfg.Channels)
	matrices := L * 12 * C * C
	rest := L*13*C + embeddings(cfg)
	for mode, bytes := range map[ShardMode]float64{
		ShardOff:        8 * (matrices + rest),
		ShardOptimizer:  8 * (matrices + rest),
		ShardGradients:  4*(matrices+rest) + micro*4*(matrices+rest),
		ShardParameters: 4*rest + micro*(2*(2*matrices-24*C*C)+4*(matrices+rest)),
	} {
		free := at(mode, math.Inf(1))
		if low, high := free.Messages(); !near(free.Low, free.High) || !near(low, 0) || !near(high, 0) {
			t.Errorf("--shard %v without messages: %+v", mode, free)
		}
		const slow = 1e6 // bytes a second
		e := at(mode, slow)
		all := bytes * (replicas - 1) / replicas / slow
		if e.High < all || e.High-all > free.High*1.01 {
			t.Errorf("--shard %v: %v s, of which messages %v and computation %v", mode, e.High, all, free.High)
		}
		if e.Low < all || e.Low > e.High {
			t.Errorf("--shard %v: at least %v s, of which messages %v", mode, e.Low, all)
		}
		if _, high := e.Messages(); !near(e.Alone, free.High) || !near(high*e.High, all) {
			t.Errorf("--shard %v: %v s alone, and messages %v of %v s; want %v, and %v s",
				mode, e.Alone, high, e.High, free.High, all)
		}
	}
}

// Messages of a stage's replicas in every micro-batch are part of its passes, and count as often
// in a pipeline.
func TestStagesSay(t *testing.T) {
	g, err := ParseGPU("H200")
	testkit.Must(t, err)
	cfg := Presets["gpt2-xl"]
	cfg.Vocab, cfg.Stage.Stages = 50257, 4
	const replicas = 8
	for _, mode := range []ShardMode{
		ShardOff, ShardOptimizer, ShardGradients, ShardParameters,
	} {
		cfg.Shard.Mode = mode
		more := func(network float64) (low float64) { // what 10 micro-batches more take
			m := NodesOf(g, 1)
			m.Network, m.Latency = network, 0
			e := func(micro int) Estimate {
				return m.Step(cfg, Job{Replicas: replicas, Batch: 4, Global: 4 * replicas * micro, Seq: 1024})
			}
			return e(30).Low - e(20).Low
		}
		// The first stage has the most messages. The weights of its last two layers are still there
		// when the next pass begins with them.
		stage := StagesOf(cfg, 4, 30, 1024)[0]
		layers, embedded := float64(stage.End), embeddings(cfg)
		section := 12. * 1600 * 1600
		bytes := map[ShardMode]float64{
			ShardGradients:  4 * (layers*section + embedded),
			ShardParameters: 4*(layers*section+embedded) + 2*2*(layers-2)*section,
		}[mode]
		const network = 2e9
		free, slow := more(math.Inf(1)), more(network)
		between := 10 * 2 * 2 * 4 * 1024 * 1600 / network // of stages
		all := 10*bytes*(replicas-1)/replicas/network + between
		if slow < all || slow > 1.001*all+free {
			t.Errorf("--shard %v: %v s, of which messages %v and computation %v", mode, slow, all, free)
		}
	}
}
