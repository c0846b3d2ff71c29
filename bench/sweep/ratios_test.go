package sweep

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/bench/measure"
)

// Each way of calling is compared with the better of a peer's sides; a peer without
// graphs with ours in one, too.
func TestRatios(t *testing.T) {
	s := testSweep(measure.GPUSet)
	graph := func(m measure.Measured) measure.Measured { m.Graph, m.Stream = true, true; return m }
	s.ratios([]measure.Measured{
		line(measure.Ours, 4, 6, 0), graph(line(measure.Ours, 4, 3, 0)), line(measure.Ours, 2, 4, 0),
		line("nccl-tests -R 0", 4, 8, 0), line("nccl-tests -R 2", 4, 5, 0), graph(line("nccl-tests -R 0", 4, 7, 0)),
		line("mpi4py staged", 4, 60, 0), line("nccl-tests -R 0", 1, 1, 0),
	})
	var got []string
	for _, r := range s.Rows {
		got = append(got, fmt.Sprintf("%d %s/%s %.3g %v", r.Ranks, r.What, *r.Peer, *r.Ratio, r.Met))
	}
	want := []string{
		"4 allreduce of 8B, float32/nccl-tests -R 2 1.2 false",
		"4 allreduce of 8B, float32/mpi4py staged 0.1 true",
		"4 allreduce of 8B, float32, in a graph/nccl-tests -R 0 0.429 true",
		"4 allreduce of 8B, float32, in a graph/mpi4py staged 0.05 true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// On symmetric memory the better of NCCL's kinds counts, and is named; on plain memory its plain
// kind. Small ones in a graph have goals against each of the two, eager ones the host's time on
// top, large ones a stricter goal.
func TestNCCLRatios(t *testing.T) {
	for _, tc := range []struct {
		name                string
		bytes, ranks        int
		graph               bool
		plain, symmetric    float64 // ours
		plainNC, symmetricN float64
		want                []string
	}{
		{"small, in a graph, 4 GPUs", 8, 4, true, 7.6, 3.5, 7.5, 3.4, []string{
			"in a graph, nccl-tests -R 0, 1.0133, goal 1.0300",
			"symmetric, in a graph, against the better of plain and symmetric NCCL, nccl-tests -R 2, 1.0294, goal " +
				"1.0300",
			"symmetric, in a graph: time, as a part of that of plain NCCL, nccl-tests -R 0, 0.4667, goal 0.4762",
			"symmetric, in a graph, against symmetric NCCL, nccl-tests -R 2, 1.0294, goal 1.0500"}},
		{"small, in a graph, 2 GPUs", 16 << 10, 2, true, 7.6, 3.5, 7.5, 3.4, []string{
			"in a graph, nccl-tests -R 0, 1.0133, goal 1.0300",
			"symmetric, in a graph, against the better of plain and symmetric NCCL, nccl-tests -R 2, 1.0294, goal " +
				"1.0300",
			"symmetric, in a graph, against symmetric NCCL, nccl-tests -R 2, 1.0294, goal 1.0500"}},
		{"small, eager", 8, 4, false, 9, 6, 8, 5, []string{
			"on a stream, nccl-tests -R 0, 1.1250, goal 1.0925",
			"symmetric, on a stream, against the better of plain and symmetric NCCL, nccl-tests -R 2, 1.2000, goal " +
				"1.1300"}},
		{"plain wins", 256 << 10, 4, true, 12, 11, 10, 12.5, []string{
			"in a graph, nccl-tests -R 0, 1.2000, goal 1.0300",
			"symmetric, in a graph, against the better of plain and symmetric NCCL, nccl-tests -R 0, 1.1000, goal " +
				"1.0300"}},
		{"large", 64 << 20, 4, false, 330, 320, 320, 360, []string{
			"on a stream, nccl-tests -R 0, 1.0312, goal 1.0116",
			"symmetric, on a stream, against the better of plain and symmetric NCCL, nccl-tests -R 0, 1.0000, goal " +
				"1.0116"}},
	} {
		s := testSweep(measure.GPUSet)
		s.goal = measure.GPUGoal
		of := func(side string, us float64, symmetric bool) measure.Measured {
			m := line(side, tc.ranks, us, 0)
			m.Bytes, m.Elements, m.Graph, m.Symmetric, m.Stream = tc.bytes, tc.bytes/4, tc.graph, symmetric, true
			return m
		}
		s.ratios([]measure.Measured{of(measure.Ours, tc.plain, false), of(measure.Ours, tc.symmetric, true),
			of("nccl-tests -R 0", tc.plainNC, false), of("nccl-tests -R 2", tc.symmetricN, true)})
		var got []string
		for _, r := range s.Rows {
			what, _ := strings.CutPrefix(r.What, fmt.Sprintf("allreduce of %s, float32, ", measure.SizeText(tc.bytes)))
			got = append(got, fmt.Sprintf("%s, %s, %.4f, goal %.4f", what, *r.Peer, *r.Ratio, r.Goal))
			if r.Met != (*r.Ratio <= r.Goal) || r.Ranks != tc.ranks {
				t.Errorf("%s: %+v", tc.name, r)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}
}
