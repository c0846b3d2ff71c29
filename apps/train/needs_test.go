package main

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// In every mode a run takes as much memory as it announced.
func TestMemoryTaken(t *testing.T) {
	spmdtest.HostOnly(t, "the memory of libraries is no part of it")
	args := smallRun(t, 2, "--val-batches", "0", "--layers", "4", "--heads", "4", "--channels", "64", "--batch", "2",
		"--global-batch", "8")
	type form struct {
		ranks int
		flags string
		every bool // in make test too, of one type
	}
	forms := testkit.Some(t, "divisions of a run whose memory is told", []form{
		{1, "", false}, {2, "", false}, {2, "--shard optimizer", false}, {2, "--shard gradients", false},
		{3, "--shard parameters", true}, {2, "--tp 2", false}, {2, "--pp 2", false},
		{3, "--pp 3", false}, {2, "--pp 2 --balance measured", true}, {4, "--dp 2 --tp 2 --shard parameters", true},
		{4, "--tp 2 --pp 2", false}, {2, "--recompute gelu", true},
		{2, "--recompute block", false}, {4, "--pp 2 --shard optimizer --recompute block", true},
	}, func(f form) bool { return f.every })
	for i, form := range forms {
		for k, dtype := range []string{"float32", "bfloat16"} {
			if !testkit.AllCases() && i%2 != k {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s on %d", dtype, form.flags, form.ranks), func(t *testing.T) {
				got, _ := finishOn(t, form.ranks, form.ranks == 3,
					append(append(args, "--dtype", dtype), strings.Fields(form.flags)...)...)
				needs, peak := got.summary.Needs, got.summary.Peak
				if ratio := float64(needs) / float64(peak); ratio < 0.99 || ratio > 1.01 {
					t.Errorf("%d bytes told, %d taken: %.3f", needs, peak, ratio)
				}
			})
		}
	}
}
