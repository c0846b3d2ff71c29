package trainer

import (
	"math/bits"

	"lockstep/apps/train/text"
	"lockstep/internal/elem"
)

// permute returns element i of a permutation of [0, n) that key chooses. It needs no memory: a
// Feistel network permutes the numbers of an even number of bits, and results of n or more go
// through it again.
func permute(key, i, n uint64) uint64 {
	half := max((bits.Len64(n-1)+1)/2, 1)
	mask := uint64(1)<<half - 1
	for {
		l, r := i>>half, i&mask
		for round := range uint64(6) {
			l, r = r, l^elem.MixBits(key^elem.MixBits(r<<3|round))&mask
		}
		if i = l<<half | r; i < n {
			return i
		}
	}
}

// Span is a run of tokens [at, at+len).
type Span struct{ At, Len int }

// Dataset is the tokens, divided into a part to learn from and a part to validate on.
type Dataset struct {
	File       text.Data
	Train, Val Span
	Seq        int    // T, tokens of a sequence
	Global     int    // most sequences of a step, over all ranks
	Growth     Growth // to Global
	Before     int    // sequences learned from before step 0; negative if earlier steps took fewer
	seed       uint64
}

// NewDataset splits the tokens. The last twentieth, but at least one global batch, is for
// validation, unless there are tokens for validation alone. The part to learn from must hold a
// global batch.
func NewDataset(f text.Data, seq, globalBatch int, seed uint64) (*Dataset, error) {
	batch := globalBatch*seq + 1 // the last target is one token further
	if v, ok := f.(text.WithVal); ok {
		if v.Train.Len() < batch || v.Val.Len() < seq+1 {
			return nil, text.BadInput("--data of %d tokens, --val-data of %d: one batch of %d sequences of %d "+
				"tokens to learn from needs %d, one sequence to validate on %d",
				v.Train.Len(), v.Val.Len(), globalBatch, seq, uint64(batch), seq+1)
		}
		return &Dataset{File: f, Train: Span{0, v.Train.Len()}, Val: Span{v.Train.Len(), v.Val.Len()}, Seq: seq,
			Global: globalBatch, Growth: Growth{Last: globalBatch}, seed: seed}, nil
	}
	if f.Len()/2 < batch {
		return nil, text.BadInput("--data: %d tokens are too few: one batch of %d sequences of %d tokens to learn "+
			"from and one to validate on need %d", f.Len(), globalBatch, seq, 2*uint64(batch))
	}
	val := max(f.Len()/20, batch)
	return &Dataset{File: f, Train: Span{0, f.Len() - val}, Val: Span{f.Len() - val, val}, Seq: seq,
		Global: globalBatch, Growth: Growth{Last: globalBatch}, seed: seed}, nil
}

// windows returns the number of sequences in one epoch. It is one less than fit if that leaves a
// whole batch: then the windows of each epoch can begin at another offset below seq.
func (d *Dataset) windows() int {
	fit := (d.Train.Len - 1) / d.Seq
	if fit > d.Global {
		fit--
	}
	return fit
}

// Number returns how many sequences were learned from before sequence j of a step.
func (d *Dataset) Number(step, j int) int { return d.Before + d.Growth.Before(step) + j }

// Start returns where sequence j of a step begins, in tokens. It depends only on the seed and the
// sequence's number. Each sequence takes the next window of the epoch's permutation, so each window
// is seen once an epoch.
func (d *Dataset) Start(step, j int) int {
	n := uint64(d.windows())
	number := uint64(d.Number(step, j))
	epoch := number / n
	key := elem.MixBits(d.seed ^ elem.MixBits(epoch))
	slack := d.Train.Len - 1 - int(n)*d.Seq
	offset := int(elem.MixBits(key) % uint64(min(slack+1, d.Seq)))
	return d.Train.At + offset + int(permute(key, number%n, n))*d.Seq
}

// ValWindows returns the number of sequences in the validation part.
func (d *Dataset) ValWindows() int { return (d.Val.Len - 1) / d.Seq }

// ValStart returns where validation sequence i of n begins. The n are spread over the validation
// part, and are the same at every validation.
func (d *Dataset) ValStart(i, n int) int {
	return d.Val.At + i*d.ValWindows()/n*d.Seq
}

// fill writes the sequence that begins at token at. in gets its tokens, target the token after
// each. Both are (seq).
func (d *Dataset) fill(in, target []int32, at int) {
	d.File.Read(in, at)
	d.File.Read(target, at+1)
}
