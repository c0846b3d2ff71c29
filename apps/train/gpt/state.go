package gpt

import (
	"hash/fnv"
	"math"
	rand "math/rand/v2"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/host"
	"lockstep/spmd"
)

// Arena is a buffer with all parameters, or one number for each of them.
type Arena struct {
	Prefix string // of its tensors' names
	Shared bool   // this rank has its shard only
	spmd.Buffer[float32]
}

// Of returns this rank's part of a parameter in an arena: its elements from skip on.
func (m *State) Of(a Arena, p layout.Param) (skip int, have spmd.Buffer[float32]) {
	if !a.Shared {
		return 0, a.Slice(p.Off, p.Off+p.Len)
	}
	skip, at, n := m.Sharded.Own(p.Group, p.Off, p.Off+p.Len)
	return skip, a.Slice(at, at+n)
}

// State is the weights of a model and their gradients, on the rank's device. They are float32 for
// any type of the activations.
type State struct {
	Cfg     layout.Config
	Params  []layout.Param         // in backward order
	Groups  []layout.Group         // each contiguous; ready of ForwardBackward counts them without --shard
	Weights spmd.Buffer[float32]   // all parameters, in the places of Params; the rest is zero
	Grads   spmd.Buffer[float32]   // their gradients, in the same places
	grads   []spmd.Buffer[float32] // of each of Groups, as passes leave them
	Sharded sharded                // what there is where the ranks share a part of these
	around  hooks                  // what passes call; none without --shard
	// (2): Loss, and a number of the program's own: one all-reduce sums both over the ranks
	Totals spmd.Buffer[float64]
	Loss   spmd.Buffer[float64] // (1): sum over the micro-batches of scale times the tokens' losses
	FP8    *ops.FP8             // nil if Cfg.FP8 is off
	// rounded weights, for the products of bfloat16 activations and their biases; else empty
	Half   spmd.Buffer[spmd.BF16]
	Rounds bool // activations are bfloat16
	// the ranks whose rows a modern model's next pass adds to the gradients of tables;
	// nil: its own only
	RowsOf *spmd.Comm
	World  *spmd.World  // where the buffers are
	space  layout.Space // of the buffers
}

// Close frees the buffers, also the activations.
func (m *State) Close() error { return m.space.Free() }

// GradGroups returns the gradients of each of Groups.
func (m *State) GradGroups() []spmd.Buffer[float32] {
	return layout.GroupsOf(m.Groups, m.Grads)
}

// Refresh enqueues on s the work that makes passes see the present Weights. Call it when anything
// but AdamW has written there.
func (m *State) Refresh(s *spmd.Stream) error {
	if m.Half.Len() == 0 {
		return nil
	}
	if err := ops.RoundWeights(s, m.Half, m.Weights); err != nil || m.FP8 == nil {
		return err
	}
	return m.FP8.CastWeights(s, m.Half)
}

// Init sets the weights by layout.Param.Init. They depend only on the seed and the tensors' names.
// It returns when they are in place. Call Refresh afterwards.
func (m *State) Init(seed uint64) error {
	most := 0
	for _, p := range m.Params {
		most = max(most, p.Uncut().Len)
	}
	all := make([]float32, most) // one for all tensors: garbage would count as memory of the run
	for _, p := range m.Params {
		x := all[:p.Uncut().Len]
		clear(x)
		initParam(x, p, m.Cfg, seed)
		if err := m.Set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// Set writes this rank's part of the first len(x) elements of a tensor. It blocks.
func (m *State) Set(p layout.Param, x []float32) error {
	if p.Cut.Run > 0 {
		x = p.Own(make([]float32, 0, p.Len), x)
	}
	if m.Cfg.Shard.Mode != layout.ShardParameters {
		return m.Weights.Slice(p.Off, p.Off+len(x)).CopyFrom(x)
	}
	skip, at, n := m.Sharded.Own(p.Group, p.Off, p.Off+len(x))
	return m.Sharded.Weights.Slice(at, at+n).CopyFrom(x[skip : skip+n])
}

// initChunk is how many elements one generator draws. It is constant, so that the values do not
// depend on the number of threads.
const initChunk = 1 << 16

func initParam(x []float32, p layout.Param, cfg layout.Config, seed uint64) {
	std := p.Init.Deviation
	if std == 0 {
		for i := range x {
			x[i] = 0
			if n := len(p.Init.Fill); n > 0 {
				x[i] = p.Init.Fill[i%n]
			}
		}
		return
	}
	if p.InVocab() {
		x = x[:cfg.Vocab*cfg.Channels]
	}
	h := fnv.New64a()
	h.Write([]byte(p.Name)) // never fails
	name := h.Sum64()
	host.Parallel((len(x)+initChunk-1)/initChunk, 1, func(lo, hi int) {
		for k := lo; k < hi; k++ {
			rng := rand.New(rand.NewPCG(seed, name+uint64(k)))
			c := x[k*initChunk : min((k+1)*initChunk, len(x))]
			for i := range c {
				if p.Init.Uniform {
					c[i] = float32(std * math.Sqrt(3) * (2*rng.Float64() - 1))
				} else {
					c[i] = float32(std * rng.NormFloat64())
				}
			}
		}
	})
}
