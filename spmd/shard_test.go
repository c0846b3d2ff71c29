package spmd_test

import (
	"testing"

	"lockstep/spmd"
)

func TestShardOf(t *testing.T) {
	for n := range 40 {
		for size := 1; size < 9; size++ {
			at := 0
			for r := range size {
				s := spmd.ShardOf(n, r, size)
				if s.Off != at || s.Len < n/size || s.Len > n/size+1 {
					t.Fatalf("ShardOf(%d, %d, %d) = %v, after %d", n, r, size, s, at)
				}
				at += s.Len
			}
			if at != n {
				t.Fatalf("the shards of %d over %d hold %d", n, size, at)
			}
		}
	}
}
