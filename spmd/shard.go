package spmd

// Shard is a contiguous part of a range.
type Shard struct{ Off, Len int }

// ShardOf cuts [0, n) into size contiguous parts, as equal as they can be, and
// returns the one of rank: the first n % size parts are one longer.
func ShardOf(n, rank, size int) Shard {
	part, rest := n/size, n%size
	return Shard{rank*part + min(rank, rest), part + b2i(rank < rest)}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
