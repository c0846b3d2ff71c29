package attention

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// The sizes that Go launches with are those of the source, and a block has that much shared memory.
func TestWGMMASizes(t *testing.T) {
	for _, want := range []string{
		fmt.Sprintf("const int stages = %d;", wgmmaStages),
		fmt.Sprintf("const int D = %d;", wgmmaMaxHead),
		"const int rows_per_tile = 2 * square;",
		fmt.Sprintf("const int square = %d;", wgmmaSquare),
		fmt.Sprintf("__launch_bounds__(%d, 1)", wgmmaThreads),
	} {
		if !strings.Contains(warpgroupSource+wgmmaTilesSource+wgmmaSource, want) {
			t.Errorf("the source has no %q", want)
		}
	}
	const most = 227 << 10 // of compute capability 9.0
	if wgmmaQueries.shared > most || wgmmaKeys.shared > most || wgmmaKeys.shared-wgmmaQueries.shared != wgmmaMatrix {
		t.Errorf("shared memory of %d and %d bytes, at most %d", wgmmaQueries.shared, wgmmaKeys.shared, most)
	}
	for _, tc := range []struct {
		shape           mmaShape
		multiprocessors int
		blocks          int
	}{
		{mmaShape{64, 1024, 12, 64, 0}, 132, 132},
		{mmaShape{1, 1, 1, 64, 0}, 132, 1},
		{mmaShape{2, 128, 3, 64, 0}, 132, 6},
		{mmaShape{2, 129, 3, 64, 0}, 132, 6},
		{mmaShape{2, 257, 3, 64, 0}, 132, 12},
		{mmaShape{2, 257, 3, 64, 0}, 0, 1},
	} {
		if g := tc.shape.wgmmaGrid(&wgmmaKeys, tc.multiprocessors); g.Blocks != [3]int{tc.blocks, 1, 1} {
			t.Errorf("%+v on %d multiprocessors: %v blocks, want %d", tc.shape, tc.multiprocessors, g.Blocks, tc.blocks)
		}
	}
}

// More tiles than a block has in flight, in blocks that take several: rings go round.
func TestWGMMAMany(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		if why := lacksWGMMA(w); why != "" {
			t.Skip(why)
		}
		for _, x := range []mmaShape{{11, 385, 25, 64, 0}, {150, 1, 3, 64, 0}, {150, 130, 3, 16, 0},
			{1, 2100, 4, 64, 0}, {2, 1500, 3, 56, 0}, {3, 1500, 3, 64, 256}} {
			testMMA(t, w, x, 1)
		}
	})
}
