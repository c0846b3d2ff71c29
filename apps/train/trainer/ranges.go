package trainer

import (
	"cmp"
	"slices"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// own is this rank's part of a range of parameters: n from first on, and where the first of them is
// in the arenas of weights, gradients and moments.
type own struct{ first, n, w, g, m int }

// ownOf returns the part of [lo, hi) of a group that this rank updates.
func ownOf(st *gpt.State, group, lo, hi int) own {
	if st.Cfg.Shard.Mode == layout.ShardOff {
		return own{lo, hi - lo, lo, lo, lo}
	}
	skip, at, n := st.Sharded.Own(group, lo, hi)
	o := own{lo + skip, n, lo + skip, lo + skip, at}
	if st.Cfg.Shard.ScattersGrads() {
		o.g = at
	}
	if st.Cfg.Shard.Mode == layout.ShardParameters {
		o.w = at
	}
	return o
}

// rangeOf returns the range of [lo, hi) of a group that this rank updates.
func (o *AdamW) rangeOf(group, lo, hi int, hyper spmd.Buffer[float32]) ops.AdamRange {
	st, x := o.state, &o.state.Sharded
	h := ownOf(st, group, lo, hi)
	w, g := st.Weights, st.Grads
	r := ops.AdamRange{M: o.M.Slice(h.m, h.m+h.n), V: o.V.Slice(h.m, h.m+h.n),
		Decay: o.decay.Slice(h.m/layout.ArenaAlign, (h.m+h.n)/layout.ArenaAlign), Hyper: hyper}
	switch mode := st.Cfg.Shard.Mode; {
	case mode == layout.ShardOff && st.Half.Len() > 0:
		r.Half = st.Half.Slice(h.w, h.w+h.n)
	case mode == layout.ShardParameters:
		w, g = x.Weights, x.Grads
	case mode == layout.ShardGradients:
		g = x.Grads
	}
	r.W, r.G = w.Slice(h.w, h.w+h.n), g.Slice(h.g, h.g+h.n)
	return r
}

// cut lists the ranges: a single one if each kind has its own memory.
func (o *AdamW) cut() (rs []ops.AdamRange) {
	st := o.state
	x := &st.Sharded
	switch mode := st.Cfg.Shard.Mode; {
	case o.muon != nil:
		return o.cutFamilies()
	case mode == layout.ShardOff:
		return []ops.AdamRange{{W: st.Weights, G: st.Grads, M: o.M, V: o.V, Half: st.Half, Decay: o.decay,
			Hyper: o.hyper}}
	case mode == layout.ShardParameters:
		return []ops.AdamRange{{W: x.Weights, G: x.Grads, M: o.M, V: o.V, Decay: o.decay, Hyper: o.hyper}}
	}
	for i, g := range st.Groups {
		rs = append(rs, o.rangeOf(i, g.Off, g.Off+g.Len, o.hyper))
	}
	return rs
}

// cutFamilies lists the ranges of each family that Muon does not update.
func (o *AdamW) cutFamilies() (rs []ops.AdamRange) {
	st := o.state
	params := slices.Clone(st.Params)
	slices.SortFunc(params, func(p, q layout.Param) int { return cmp.Compare(p.Off, q.Off) })
	for i := 0; i < len(params); {
		lo, group, family := params[i].Off, params[i].Group, st.Cfg.Family(params[i])
		for i < len(params) && st.Cfg.Family(params[i]) == family &&
			(params[i].Group == group || st.Cfg.Shard.Mode == layout.ShardOff) {
			i++
		}
		of := params[i-1].Group
		hi := st.Groups[of].Off + st.Groups[of].Len
		if i < len(params) && params[i].Group == of {
			hi = params[i].Off
		}
		for _, rate := range o.rates {
			if rate.family == family {
				rs = append(rs, o.rangeOf(group, lo, hi, rate.hyper))
			}
		}
	}
	return rs
}
