package parallel

import (
	"fmt"

	"lockstep/internal/elem"
)

// Partition says how ranks share buckets of elements, such as the parameters of each layer. Every
// bucket is padded so that the ranks have equal parts of it: rank r has the r-th. Any length and
// any number of ranks will do.
//
// An arena is memory for all buckets, one after the other. A shard is memory for one rank's part of
// each bucket, in the same order.
type Partition struct {
	rank, ranks int
	ends        []int // of the buckets in an arena
}

// NewPartition returns the partition of buckets with so many elements each, as rank of ranks sees
// it. A rank's part of a bucket is a multiple of align elements. It panics if ranks or align are
// not above 0, rank is none of the ranks, or a length is below 0 or more than any memory has.
func NewPartition(rank, ranks, align int, lens ...int) Partition {
	unit, ok := elem.Product(ranks, align)
	if rank < 0 || rank >= ranks || align <= 0 || !ok {
		panic(fmt.Sprintf("parallel: a partition for rank %d of %d, by %d elements", rank, ranks, align))
	}
	p := Partition{rank: rank, ranks: ranks, ends: make([]int, len(lens))}
	end := 0
	for i, n := range lens {
		if _, ok := elem.Total(n, unit, end); !ok {
			panic(fmt.Sprintf("parallel: bucket %d of a partition has %d elements", i, n))
		}
		end += n + (unit-n%unit)%unit
		p.ends[i] = end
	}
	return p
}

// Len returns the number of elements of an arena.
func (p Partition) Len() int { return p.begin(len(p.ends)) }

// ShardLen returns the number of elements of a shard.
func (p Partition) ShardLen() int { return p.Len() / max(p.ranks, 1) }

// begin returns where bucket i begins in an arena.
func (p Partition) begin(i int) int {
	if i == 0 {
		return 0
	}
	return p.ends[i-1]
}

// Bucket returns the elements [lo, hi) of bucket i in an arena, with its padding.
func (p Partition) Bucket(i int) (lo, hi int) { return p.begin(i), p.ends[i] }

// Part returns the elements [lo, hi) of this rank's part of bucket i in an arena.
func (p Partition) Part(i int) (lo, hi int) {
	n := (p.ends[i] - p.begin(i)) / p.ranks
	lo = p.begin(i) + p.rank*n
	return lo, lo + n
}

// Shard returns the elements [lo, hi) of this rank's part of bucket i in a shard.
func (p Partition) Shard(i int) (lo, hi int) { return p.begin(i) / p.ranks, p.ends[i] / p.ranks }

// Own returns this rank's elements of [lo, hi), a range of bucket i in an arena: those from lo+skip
// on are in its shard from at to at+n. n is 0 if it has none.
func (p Partition) Own(i, lo, hi int) (skip, at, n int) {
	first, last := p.Part(i)
	shard, _ := p.Shard(i)
	from, to := max(lo, first), min(hi, last)
	if from >= to {
		return 0, shard, 0
	}
	return from - lo, shard + from - first, to - from
}
