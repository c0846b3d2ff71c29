package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// Messages between ranks go on streams of their own, beside the products: weights, gradients and
// the sums of divided layers. The train stream has only the sums that it must wait for: of the
// loss, the norm, the tied embeddings, and the short gradients of which each rank has some rows.
func TestOverlap(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "the streams are the same on any device")
	const steps, micro, layers = 2, 2, 2
	const pieces = 2 // of rows that are gathered or scattered, at the least
	// Forward, a layer gathers the inputs of its first product and of the MLP's.
	// Backward, it gathers these and its gradient twice. The head gathers its input, and
	// the embeddings their gradient.
	//
	// Each pass of a layer scatters the results of two products. The head and
	// the embeddings scatter theirs.
	gathers, scatters := (layers*(2+4)+2)*pieces, (layers*(2+2)+2)*pieces
	statistics := 2 * pieces // of the logits, of half a piece each
	args := smallRun(t, steps, "--val-batches", "0", "--global-batch", "8", "--layers", "2", "--log-level", "warn")
	for _, tc := range []struct {
		ranks int
		flags string
		want  map[string]int // of stream and call
	}{
		{2, "", map[string]int{"reducer AllReduce": steps * 3}},
		{2, "--shard optimizer", map[string]int{"scatterer ReduceScatter": steps * (2*layers + 2),
			"gatherer AllGather": steps*(2*layers+2) + 2*layers + 2}},
		{2, "--shard gradients", map[string]int{"scatterer ReduceScatter": steps * micro * (2*layers + 2),
			"gatherer AllGather": steps*(2*layers+2) + 2*layers + 2}},
		{2, "--tp 2 --batch 4", map[string]int{"tensor ReduceScatter": steps * micro * scatters,
			"tensor AllGather": steps * micro * (gathers + statistics)}},
		{4, "--dp 2 --tp 2 --shard optimizer", map[string]int{"tensor ReduceScatter": steps * micro * scatters,
			"tensor AllGather":        steps * micro * (gathers + statistics),
			"scatterer ReduceScatter": steps * (2*layers + 2)}},
		// All layers but the last are computed again, except their last product.
		{2, "--tp 2 --batch 4 --recompute block",
			map[string]int{"tensor ReduceScatter": steps * micro * (scatters + (layers-1)*pieces),
				"tensor AllGather": steps * micro * (gathers + (layers-1)*2*pieces + statistics)}},
	} {
		file := filepath.Join(t.TempDir(), "trace.json")
		finish(t, tc.ranks, append(append(args, "--trace", file), strings.Fields(tc.flags)...)...)
		got := callsOf(t, file)
		for what, n := range tc.want {
			if got[what] != n {
				t.Errorf("%s: %d of %s, want %d; all: %v", tc.flags, got[what], what, n, got)
			}
		}
		few := 3
		// in one group: at most two of each half of a layer, and the last LayerNorm's
		if strings.Contains(tc.flags, "--tp") {
			few += 2*2*layers + 1
		}
		if got["train AllGather"]+got["train ReduceScatter"] > 0 || got["train AllReduce"] > steps*few ||
			got["train Group"] > steps || got["train Gemm"] == 0 {
			t.Errorf("%s: on the train stream %v", tc.flags, got)
		}
	}
}

// callsOf counts the calls of rank 0 in a trace, by stream and name.
func callsOf(t *testing.T, file string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(file)
	spmdtest.Must(t, err)
	var trace struct {
		TraceEvents []struct {
			Ph, Name string
			Pid, Tid int
			Args     struct{ Name string }
		}
	}
	spmdtest.Must(t, json.Unmarshal(text, &trace))
	streams, calls := map[int]string{}, map[string]int{}
	for _, e := range trace.TraceEvents {
		if e.Pid == 0 && e.Ph == "M" && e.Name == "thread_name" {
			streams[e.Tid] = strings.TrimPrefix(e.Args.Name, "stream ")
		}
	}
	for _, e := range trace.TraceEvents {
		if e.Pid == 0 && e.Ph == "X" {
			name := e.Name
			if strings.HasPrefix(name, "Gemm ") { // and its shape
				name = "Gemm"
			}
			calls[streams[e.Tid]+" "+name]++
		}
	}
	return calls
}
