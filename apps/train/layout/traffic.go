package layout

import (
	"slices"
)

// use is one use of a section of the layers by a pass.
type use struct {
	section int     // that it reads the matrices of; below 0 of none
	work    float64 // seconds of computation
	leaves  float64 // seconds in which its gradients go to other replicas, or 0
	waits   bool    // what comes behind it waits until all that was to go has gone
}

// lanes are two sequences that go on beside each other on a rank: computation, and messages between
// replicas. Each is in the order in which gpt.Sharder, parallel.Gatherer, parallel.Scatterer and
// parallel.Reducer enqueue it.
type lanes struct {
	gather []float64 // seconds in which the weights of a section come; nil if all ranks have them
	// sections that have memory for weights and gradients at a time: section i takes
	// turns with i+slots
	slots int
	hides bool // one goes on while the other does; else everything is in one order
}

// ends returns when the uses are computed.
func (x lanes) ends(uses []use) []float64 {
	compute, wire := 0.0, 0.0
	send := func(seconds float64) float64 {
		if wire = max(wire, compute) + seconds; !x.hides {
			compute = wire
		}
		return wire
	}
	// came is when the weights of a use are there, next is the use whose weights come next.
	// Weights come as soon as the last use of their memory is computed. They come once for all
	// uses in a row.
	came, next := make([]float64, len(uses)), 0
	before, comes := x.turns(uses)
	gather := func(done int) {
		for ; next < len(uses) && (!comes[next] || before[next] < done); next++ {
			if comes[next] {
				came[next] = send(x.gather[uses[next].section])
			}
		}
	}
	left := map[int]float64{} // by slot: when gradients have left it
	ends := make([]float64, len(uses))
	gather(0)
	for k, u := range uses {
		compute = max(compute, came[k])
		if u.section >= 0 && u.leaves > 0 {
			compute = max(compute, left[u.section%x.slots])
		}
		compute += u.work
		gather(k + 1)
		if u.leaves > 0 {
			if t := send(u.leaves); u.section >= 0 {
				left[u.section%x.slots] = t
			}
		}
		if u.waits {
			compute = max(compute, wire)
		}
		ends[k] = compute
	}
	return ends
}

// turns returns which use before each had its memory last, or -1, and whether its weights
// have to come.
func (x lanes) turns(uses []use) (before []int, comes []bool) {
	before, comes = make([]int, len(uses)), make([]bool, len(uses))
	last := map[int]int{} // use by slot
	for k, u := range uses {
		before[k] = -1
		if u.section < 0 || x.gather == nil {
			continue
		}
		slot := u.section % x.slots
		j, met := last[slot]
		if comes[k] = !met || uses[j].section != u.section; met {
			before[k] = j
		}
		last[slot] = k
	}
	return before, comes
}

// replicas is how the replicas of a stage share their work, and how long each message takes.
type replicas struct {
	cfg    Config
	share  share
	gather []float64 // of the matrices of each section
	send   []float64 // of gradients; if every rank updates everything, by the section that they follow
	kept   float64   // of the weights of all else
	rest   float64   // of the gradients of all else
}

// These are the sizes of buckets of gradients without --shard, in bytes, inside a node and over
// several. Package trainer has the same.
const (
	bucketInNode = 1 << 30
	bucketOver   = 64 << 20
)

// among returns the messages among replicas of a stage; here is the number in a node.
func (m Machine) among(cfg Config, j Job, s share, here int, manyNodes bool) replicas {
	n := len(s.sections)
	r := replicas{cfg: cfg, share: s, send: make([]float64, n)}
	if j.Replicas == 1 {
		return r
	}
	// half is a reduce-scatter, or an all-gather.
	half := func(bytes float64) float64 { return m.allReduce(bytes, j.Replicas, here) / 2 }
	mode := cfg.Shard.Mode
	if mode == ShardOff {
		most, bytes := float64(bucketInNode), 0.0
		if manyNodes {
			most = bucketOver
		}
		for i := n - 1; i >= 0; i-- { // as the backward pass goes
			if bytes += 4 * (s.sections[i].params + s.vectors/float64(n)); bytes >= most {
				r.send[i], bytes = m.allReduce(bytes, j.Replicas, here), 0
			}
		}
		if bytes += 4 * s.embeddings; bytes > 0 {
			r.rest = m.allReduce(bytes, j.Replicas, here)
		}
		return r
	}
	size := 4.0
	if mode == ShardParameters {
		size = 2
	}
	r.gather = make([]float64, n)
	for i, x := range s.sections {
		r.gather[i], r.send[i] = half(size*x.params), half(4*x.params)
	}
	r.kept = half(4 * s.vectors)
	if s.embeddings > 0 {
		r.kept += half(4 * s.embeddings)
	}
	r.rest = r.kept
	return r
}

// weightSlots is how many sections have memory at a time if ranks share all weights: those of two
// layers. Package gpt has the same.
const weightSlots = 4

// pass lists the uses of both passes of a micro-batch, slower by a factor. sends says that its
// gradients go between the replicas.
func (r replicas) pass(slower float64, sends bool) (forward, backward []use) {
	s := r.share
	for i, x := range s.sections {
		forward = append(forward, use{section: i, work: x.forward * slower})
	}
	forward = append(forward, use{section: -1, work: s.head.forward * slower})
	backward = append(backward, use{section: -1, work: s.head.backward * slower})
	for l := len(s.sections)/2 - 1; l >= 0; l-- {
		attn, mlp := s.sections[2*l], s.sections[2*l+1]
		if mlp.again+attn.again > 0 && r.cfg.Recompute == RecomputeBlock {
			backward = append(backward, use{section: 2 * l, work: attn.again * slower})
		}
		uses := []use{{section: 2*l + 1, work: (mlp.again + mlp.backward) * slower},
			{section: 2 * l, work: attn.backward * slower}}
		for i := range uses {
			if sends {
				uses[i].leaves = r.send[uses[i].section]
			}
		}
		backward = append(backward, uses...)
	}
	if sends {
		backward = append(backward, use{section: -1, leaves: r.rest, waits: true})
	}
	return forward, backward
}

// times are how long the passes of a stage take: of any micro-batch, and in addition at the
// beginning and at the end of a step.
type times struct{ forward, backward, begin, end float64 }

// hiding says whether computation hides the messages beside it.
type hiding bool

const (
	hidden hiding = true
	shown  hiding = false
)

// times returns the times of passes that are slower by a factor, with the replicas' messages.
func (r replicas) times(slower float64, messages hiding) times {
	mode, staged := r.cfg.Shard.Mode, r.cfg.Stage.Stages > 1
	all := len(r.share.sections) // that have memory of their own
	both := func(x lanes, sends, going bool) (forward, backward float64) {
		f, b := r.pass(slower, sends)
		uses := slices.Concat(f, b)
		if going { // weights come for the next pass while this one goes on
			uses = slices.Concat(uses, uses)
		}
		ends := x.ends(uses)
		start, last := 0.0, len(ends)-1
		if going {
			start = ends[len(f)+len(b)-1]
		}
		middle := ends[last-len(b)]
		return middle - start, ends[last] - middle
	}
	scatters := r.cfg.Shard.ScattersGrads()
	x := lanes{slots: max(1, all), hides: bool(messages)}
	if scatters {
		x.slots = weightSlots
	}
	var t times
	switch mode {
	case ShardOff, ShardOptimizer, ShardGradients:
		t.forward, t.backward = both(x, scatters, false)
		_, last := both(x, true, false)
		t.end = last - t.backward
	default:
		x.gather = r.gather
		t.forward, t.backward = both(x, true, staged)
	}
	if r.gather == nil {
		return t
	}
	if t.begin = r.kept; mode == ShardParameters {
		if first, _ := both(x, true, false); staged {
			t.begin += first - t.forward
		}
		return t
	}
	if staged || r.cfg.FP8 != FP8Off { // all weights are there before the first pass
		for _, g := range r.gather {
			t.begin += g
		}
		return t
	}
	first, _ := both(lanes{gather: r.gather, slots: max(1, all), hides: bool(messages)}, false, false)
	t.begin += first - t.forward
	return t
}
