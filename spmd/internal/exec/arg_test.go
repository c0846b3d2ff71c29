package exec

import (
	"testing"

	"lockstep/internal/elem"
)

// A kernel moves the element of each index, without single ones and the halo around them.
func TestEachOnce(t *testing.T) {
	number := func(n int) Arg { return Number(elem.Int64, int64(n)) }
	buffer := func(n int) Arg { return Arg{Kind: BufferArg, Type: elem.Float64, N: n} }
	for _, tc := range []struct {
		name string
		args []Arg
		dims int
		want int
	}{
		{"two", []Arg{number(100), buffer(100), buffer(100)}, 1, 1600},
		{"a single element", []Arg{number(100), buffer(100), buffer(1)}, 1, 800},
		{"a halo", []Arg{number(100), buffer(102), buffer(102)}, 1, 1600},
		{"a halo, in three dimensions", []Arg{number(32), number(32), number(32), buffer(34 * 34 * 34)}, 3, 8 << 15},
		{"of another kind", []Arg{number(100), buffer(100), buffer(1000)}, 1, 0},
		{"shorter", []Arg{number(100), buffer(100), buffer(99)}, 1, 0},
		{"a struct", []Arg{number(100), buffer(100), {Kind: StructArg, N: 8}}, 1, 0},
		{"not known", []Arg{number(100), buffer(100)}, 0, 0},
	} {
		if got := Args(tc.args).EachOnce(tc.dims); got != tc.want {
			t.Errorf("%s: %d bytes, want %d", tc.name, got, tc.want)
		}
	}
}
