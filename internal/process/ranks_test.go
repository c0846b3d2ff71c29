package process

import (
	"fmt"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	const head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	const row = "00000000ba780113: 00000002 00000000 %s 0001 01 12 %s\n"
	for _, tc := range []struct {
		table string
		want  []int
	}{
		{"", nil},
		{head, nil},
		{head + fmt.Sprintf(row, "00010000", RankAddress(7)) + fmt.Sprintf(row, "00010000", RankAddress(31)),
			[]int{7, 31}},
		{fmt.Sprintf(row, "00000000", RankAddress(7)), nil}, // an end of a connection
		{fmt.Sprintf(row, "00010000", RankAddress(-7)), nil},
		{fmt.Sprintf(row, "00010000", RankAddress(7)+"x"), nil},
		{fmt.Sprintf(row, "00010000", "/run/lockstep.rank.7"), nil},
		{fmt.Sprintf(row, "00010000", "7"), nil},
		{"00000000ba780113: 00000003 00000000 00000000 0001 03 1164\n", nil},
		{"00010000 @lockstep.rank.7\n", nil},
	} {
		if got := parse(tc.table); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %v, want %v", tc.table, got, tc.want)
		}
	}
}
