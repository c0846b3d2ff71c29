package main

import "math/bits"

// splitmix is the SplitMix64 generator's output function: it turns numbers that
// differ in any bit into numbers that look independent.
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// permute returns element i of a permutation of [0, n) that key chooses. It needs
// no memory: a Feistel network permutes the numbers of an even number of bits,
// and results of n or more go through it again.
func permute(key, i, n uint64) uint64 {
	half := max((bits.Len64(n-1)+1)/2, 1)
	mask := uint64(1)<<half - 1
	for {
		l, r := i>>half, i&mask
		for round := range uint64(6) {
			l, r = r, l^splitmix(key^splitmix(r<<3|round))&mask
		}
		if i = l<<half | r; i < n {
			return i
		}
	}
}

// span is a run of tokens [at, at+len).
type span struct{ at, len int }

// dataset is the tokens, cut in a part to learn from and a part to validate on.
type dataset struct {
	file       tokenData
	train, val span
	seq        int // T, tokens of a sequence
	global     int // sequences of a step, over all ranks
	before     int // sequences learned from before step 0; negative where steps before took fewer
	seed       uint64
}

// newDataset splits the tokens: the last twentieth, at least one global batch, is
// for validation, where there are none for it alone. The part to learn from must hold a
// global batch.
func newDataset(f tokenData, seq, globalBatch int, seed uint64) (*dataset, error) {
	batch := globalBatch*seq + 1 // the last target is one token further
	if v, ok := f.(withVal); ok {
		if v.train.len() < batch || v.val.len() < seq+1 {
			return nil, badInput("--data of %d tokens, --val-data of %d: one batch of %d sequences of %d tokens to learn from needs %d, "+
				"one sequence to validate on %d", v.train.len(), v.val.len(), globalBatch, seq, uint64(batch), seq+1)
		}
		return &dataset{file: f, train: span{0, v.train.len()}, val: span{v.train.len(), v.val.len()}, seq: seq, global: globalBatch, seed: seed}, nil
	}
	if f.len()/2 < batch {
		return nil, badInput("--data: %d tokens are too few: one batch of %d sequences of %d tokens to learn from "+
			"and one to validate on need %d", f.len(), globalBatch, seq, 2*uint64(batch))
	}
	val := max(f.len()/20, batch)
	return &dataset{file: f, train: span{0, f.len() - val}, val: span{f.len() - val, val}, seq: seq, global: globalBatch, seed: seed}, nil
}

// windows is the number of sequences in one epoch. Where that leaves a whole batch
// it is one less than fit: then the windows of each epoch can begin at another
// offset below seq.
func (d *dataset) windows() int {
	fit := (d.train.len - 1) / d.seq
	if fit > d.global {
		fit--
	}
	return fit
}

// number returns how many sequences were learned from before sequence j of a step.
func (d *dataset) number(step, j int) int { return d.before + step*d.global + j }

// start returns where sequence j of a step begins, in tokens. It depends on the
// seed and the sequence's number alone: each takes the next window of the epoch's
// permutation, so each window is seen once an epoch.
func (d *dataset) start(step, j int) int {
	n := uint64(d.windows())
	number := uint64(d.number(step, j))
	epoch := number / n
	key := splitmix(d.seed ^ splitmix(epoch))
	slack := d.train.len - 1 - int(n)*d.seq
	offset := int(splitmix(key) % uint64(min(slack+1, d.seq)))
	return d.train.at + offset + int(permute(key, number%n, n))*d.seq
}

// valWindows is the number of sequences in the validation part.
func (d *dataset) valWindows() int { return (d.val.len - 1) / d.seq }

// valStart returns where validation sequence i of n begins: the n are spread over
// the validation part, and the same at every validation.
func (d *dataset) valStart(i, n int) int {
	return d.val.at + i*d.valWindows()/n*d.seq
}

// fill writes the sequence that begins at token at: in gets its tokens, target the
// token after each. Both are (seq).
func (d *dataset) fill(in, target []int32, at int) {
	d.file.read(in, at)
	d.file.read(target, at+1)
}
