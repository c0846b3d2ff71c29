package main

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// In every mode a run takes what it said before that it needs.
func TestMemoryTaken(t *testing.T) {
	spmdtest.HostOnly(t, "the memory of libraries is no part of it")
	args := smallRun(t, 2, "--val-batches", "0", "--layers", "4", "--heads", "4", "--channels", "64", "--batch", "2", "--global-batch", "8")
	for _, form := range []struct {
		ranks int
		flags string
	}{
		{1, ""}, {2, ""}, {2, "--shard optimizer"}, {2, "--shard gradients"}, {3, "--shard parameters"}, {2, "--tp 2"}, {2, "--pp 2"}, {3, "--pp 3"}, {2, "--pp 2 --balance measured"},
		{4, "--dp 2 --tp 2 --shard parameters"}, {4, "--tp 2 --pp 2"}, {2, "--recompute gelu"}, {2, "--recompute block"}, {4, "--pp 2 --shard optimizer --recompute block"},
	} {
		for _, dtype := range []string{"float32", "bfloat16"} {
			t.Run(fmt.Sprintf("%s, %s on %d", dtype, form.flags, form.ranks), func(t *testing.T) {
				got, _ := finish(t, form.ranks, append(append(args, "--dtype", dtype), strings.Fields(form.flags)...)...)
				needs, peak := got.summary.Needs, got.summary.Peak
				if ratio := float64(needs) / float64(peak); ratio < 0.99 || ratio > 1.01 {
					t.Errorf("%d bytes told, %d taken: %.3f", needs, peak, ratio)
				}
			})
		}
	}
}
