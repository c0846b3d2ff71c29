package measure

import (
	"fmt"
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		from, to, factor int
		want             []int
	}{
		{8, 64, 2, []int{8, 16, 32, 64}},
		{8, 63, 2, []int{8, 16, 32}},
		{10, 1000, 10, []int{10, 100, 1000}},
		{8, 8, 2, []int{8}},
		{1, MostBytes, 1 << 20, []int{1, 1 << 20, 1 << 40}},
		{8, 7, 2, nil},
		{8, 64, 1, nil},
		{8, 64, 0, nil},
	} {
		got, err := Sizes(tc.from, tc.to, tc.factor)
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.want != nil) {
			t.Errorf("%d to %d by %d: %v, %v", tc.from, tc.to, tc.factor, got, err)
		}
	}
}

// Cases survive the way to a rank. Parts are equal and cut as in nccl-tests. No size comes twice.
func TestCases(t *testing.T) {
	gather, float := Operations[3], DTypes[0]
	for _, tc := range []struct{ bytes, ranks, want int }{
		{8, 1, 2}, {8, 2, 2}, {8, 3, 0}, {16, 3, 3}, {64, 4, 16}, {100, 3, 24}, {1 << 20, 3, 262140},
		{1 << 20, 4, 1 << 18},
	} {
		if got := fitted(gather, float, tc.bytes, tc.ranks); got != tc.want {
			t.Errorf("%s of %d bytes on %d ranks: %d elements, want %d", gather.Name, tc.bytes, tc.ranks, got, tc.want)
		}
	}
	list := Cases(Operations, DTypes, []int{8, 9, 1 << 10, 1 << 20}, 3, func(bytes int) int { return 3 * bytes })
	for i, c := range list {
		back, err := parseCase(c.String(), 3)
		if err != nil || back.String() != c.String() || c.Calls%3 != 0 || c.Calls < 3*c.Bytes() ||
			c.Calls > 4*c.Bytes() {
			t.Fatalf("%v: %v, %v", c, back, err)
		}
		if i > 0 && list[i-1].Op.Name == c.Op.Name && list[i-1].DType.Name == c.DType.Name &&
			list[i-1].Elements >= c.Elements {
			t.Errorf("%v after %v", c, list[i-1])
		}
	}
	n := len(Cases(Operations, DTypes[:1], []int{8, 1 << 10}, 1, func(int) int { return 2 }))
	if n != 2*(len(Operations)-1) {
		t.Errorf("%d cases on 1 rank, want 2 of each operation but ping-pong", n)
	}
	for _, bad := range []string{"", "allreduce:float32:8", "allreduce:float32:8:1:1", "scan:float32:8:1",
		"allreduce:half:8:1", "allreduce:float32:0:1",
		"allreduce:float32:8:0", "allgather:float32:8:1", "allreduce:float32:x:1"} {
		if _, err := parseCase(bad, 3); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, err := parseCase("pingpong:float32:8:1", 1); err == nil {
		t.Error("a ping-pong of one rank is accepted")
	}
	if _, err := parseCase("allreduce:int8:8:1", 128); err == nil {
		t.Error("a sum of 128 ranks in an int8 is accepted")
	}
}

// Every collective, type and way of calling is measured, with no wrong element.
func TestSweepRank(t *testing.T) {
	for _, n := range spmdtest.Ranks(t, 1, 2, 3) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			list := Cases(Operations, DTypes, []int{256, 5000}, n, func(int) int { return GraphCalls + 1 })
			p := spmdtest.Program(t, n, nil,
				append([]string{"--device=" + spmdtest.Device(), "--json=-", "--log-level=warn",
					"--iters=2", "--warmup=1", "--graph=both", "--in-place=both", "--stream=on"}, CaseArgs(list)...)...)
			if p.Status != 0 {
				t.Fatalf("status %d\n%s", p.Status, p.Stderr)
			}
			all, err := Lines[Measured](p.Stdout)
			spmdtest.Must(t, err)
			want := 0
			for _, c := range list {
				want += 2 * len(c.Op.Places)
			}
			kinds := map[Kind]bool{}
			for _, m := range all {
				kinds[m.Kind] = true
				calls := GraphCalls + 1
				if m.Graph { // two launches
					calls = 2 * GraphCalls
				}
				if m.Wrong == nil || *m.Wrong != 0 || !m.OK || m.MedianUS <= 0 || m.Iters != 2 || m.Calls != calls ||
					m.Ranks != n {
					t.Errorf("%+v", m)
				}
			}
			if len(all) != want || len(kinds) != want {
				t.Errorf("%d lines, %d kinds, want %d", len(all), len(kinds), want)
			}
		})
	}
}

// A wrong element is counted at any place. Before the call everything that a rank is to receive is
// wrong, after it nothing is, and then the spoilt elements are.
func TestWrong(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("copies")
		spmdtest.Must(t, err)
		for _, op := range Operations {
			c := Case{Op: op, DType: DTypes[0], Elements: 2 * period, Calls: 1}
			b, err := newBuffers[float32](w, s, c, variant{inPlace: !slices.Contains(op.Places, false)})
			spmdtest.Must(t, err)
			spmdtest.Must(t, b.fill())
			count := func(when string, want int) {
				t.Helper()
				if got, err := b.wrong(); err != nil || got != want {
					t.Fatalf("%s, %s: %d wrong elements, want %d: %v", op.Name, when, got, want, err)
				}
			}
			received := map[string]int{"reduce": 2 * period, "gather": 2 * period, "broadcast": 2 * period,
				"reducescatter": 2 * period, "scatter": 2 * period}[op.Name]
			if received == 0 {
				received = 4 * period // on both ranks
			}
			count("before the call", received)
			spmdtest.Must(t, b.call(w.Comm())())
			count("after it", 0)
			if w.Rank() == root {
				for i := range 3 {
					b.dst.Set(i*100, 99)
				}
			}
			count("spoilt", 3)
			if err := b.dst.SetAll(0); err != nil { // as if nothing had been sent but noughts
				t.Fatal(err)
			}
			if got, err := b.wrong(); err != nil || got < received/2 {
				t.Errorf("%s: of %d noughts only %d are wrong: %v", op.Name, received, got, err)
			}
			b.free()
		}
	})
}

// Buffers longer than a tile are filled and checked to their end.
func TestTiles(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("copies")
		spmdtest.Must(t, err)
		n := 4*tile + 6
		b, err := newBuffers[float32](w, s, Case{Op: Operations[3], DType: DTypes[0], Elements: n, Calls: 1}, variant{})
		spmdtest.Must(t, err)
		defer b.free()
		spmdtest.Must(t, b.fill())
		got := make([]float32, n/2) // all-gather: the other rank has as many
		spmdtest.Must(t, b.src.CopyTo(got))
		for i, v := range got {
			if want := b.pattern.values[w.Rank()][i%period]; v != want {
				t.Fatalf("element %d is %v, want %v", i, v, want)
			}
		}
		spmdtest.Must(t, b.call(w.Comm())())
		for spoilt, i := range []int{n, 0, tile - 1, tile, 2*tile + 1, n - 1} { // n: nothing yet
			if w.Rank() == root && i < n {
				b.dst.Set(i, -1)
			}
			if wrong, err := b.wrong(); err != nil || wrong != spoilt {
				t.Fatalf("%d wrong elements, want %d: %v", wrong, spoilt, err)
			}
		}
	})
}

// Sums are exact in every type, up to the ranks that parseCase accepts.
func TestPattern(t *testing.T) {
	for _, ranks := range []int{1, 64, 127} {
		p := newPattern[int8](ranks, 127)
		for i := range period {
			sum := 0
			for r := range ranks {
				sum += int(p.values[r][i])
			}
			if sum > 127 || int(p.sums[i]) != sum {
				t.Fatalf("%d ranks: the sum is %d, held as %d", ranks, sum, p.sums[i])
			}
		}
	}
	q := newPattern[spmd.BF16](100, 256)
	if q.sums[0].Float32() != float32(int(q.sums[0].Float32())) || slices.Equal(q.values[0], q.values[1]) {
		t.Error("ranks hold the same, or sums are rounded")
	}
}
