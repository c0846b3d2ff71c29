package parallel

import "testing"

// Rank 0 does not decide who is wrong.
func TestDifference(t *testing.T) {
	for _, tc := range []struct {
		all  []uint64
		want string
	}{
		{[]uint64{7}, ""},
		{[]uint64{7, 7, 7}, ""},
		{[]uint64{7, 7, 9}, "rank 2 has hash 0000000000000009, the 2 others have 0000000000000007"},
		{[]uint64{9, 7, 7, 7}, "rank 0 has hash 0000000000000009, the 3 others have 0000000000000007"},
		{[]uint64{7, 9, 7, 9, 7}, "ranks 1, 3 have hash 0000000000000009, the 3 others have 0000000000000007"},
		{[]uint64{8, 7, 9, 7, 7}, "rank 0 has hash 0000000000000008, rank 2 has hash 0000000000000009, " +
			"the 3 others have 0000000000000007"},
		{[]uint64{7, 9}, "rank 0 has hash 0000000000000007, rank 1 has hash 0000000000000009"},
		{[]uint64{7, 9, 9, 7}, "ranks 0, 3 have hash 0000000000000007, ranks 1-2 have hash 0000000000000009"},
		{[]uint64{5, 7, 9}, "rank 0 has hash 0000000000000005, rank 1 has hash 0000000000000007, rank 2 " +
			"has hash 0000000000000009"},
	} {
		if got := difference(tc.all); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.all, got, tc.want)
		}
	}
}
