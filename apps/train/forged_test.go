package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/spmd/spmdtest"
)

// A token file that is truncated during the run ends it with one line, not with every stack.
func TestTruncatedTokenFile(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "no device plays a part")
	const ranks = 2
	spmdtest.Ranks(t, ranks)
	cache := t.TempDir()
	j := begin(t, ranks, nil, smallRun(t, 1<<20, "--cache", cache, "--val-batches", "0", "--log-ranks", "all")...)
	j.read(t, 2)
	files, err := filepath.Glob(filepath.Join(cache, "*.tok"))
	if err != nil || len(files) != 1 {
		t.Fatalf("token files %v, %v", files, err)
	}
	spmdtest.Must(t, os.Truncate(files[0], 0))
	status, log := j.end(t), j.stderr.String()
	want := files[0] + ": its tokens are gone: it was truncated while it was in use"
	if status != 1 || strings.Count(log, want) != 1 || strings.Contains(log, "goroutine ") ||
		strings.Contains(log, "SIGBUS") {
		t.Errorf("status %d, want 1 and one line with %q:\n%.4000s", status, want, log)
	}
}

// A checkpoint with impossible settings of a run is refused, and its text
// cannot control the terminal.
func TestForgedCheckpoint(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	dir := t.TempDir()
	args := smallRun(t, 2, "--checkpoint", dir, "--val-batches", "1")
	finish(t, 1, args...)
	for i, a := range args {
		if a == "--global-batch" {
			args = slices.Delete(args, i, i+2)
			break
		}
	}
	index := filepath.Join(stepDir(dir, 2), "index.json")
	good, err := os.ReadFile(index)
	spmdtest.Must(t, err)
	setting := func(name, value string) func(meta map[string]any) {
		return func(meta map[string]any) { meta["settings"].(map[string]any)[name] = value }
	}
	for _, tc := range []struct {
		name   string
		forge  func(meta map[string]any)
		status int
		want   string
	}{
		{"nothing", func(map[string]any) {}, 0, "resumed"},
		{"2^62 sequences a step", setting("--global-batch", "4611686018427387904"), 2,
			`--global-batch is "4611686018427387904"`},
		{"2^31+1 sequences a step", setting("--global-batch", "2147483649"), 2, `--global-batch is "2147483649"`},
		{"no sequence a step", setting("--global-batch", "0"), 2, `--global-batch is "0"`},
		{"a batch that is no number", setting("--global-batch", "\x1b[2J"), 2, `--global-batch is "\x1b[2J"`},
		{"8-bit floats of no kind", setting("--fp8", "\x1b[2J"), 2, `--fp8 is "\x1b[2J"`},
		{"8-bit floats, of which the host has none", setting("--fp8", "all"), 2,
			"has a run with --fp8 all, which needs a GPU"},
		{"2^61 sequences", func(meta map[string]any) { meta["sequences"] = 1 << 61 }, 2,
			"2305843009213693952 sequences of 16 tokens in 2 steps"},
		{"no sequences", func(meta map[string]any) { meta["sequences"] = 0 }, 2, "0 sequences of 16 tokens in 2 steps"},
		{"fewer than none", func(meta map[string]any) { meta["sequences"] = -1 }, 2, "-1 sequences"},
		{"more left out than were", func(meta map[string]any) { meta["skipped"] = 3 }, 2, "3 of 2 steps left out"},
		{"escapes", setting("--lr", "1\x1b]0;owned\x07\u009b2J\u202e"), 0,
			`--lr from 1\x1b]0;owned\a\u009b2J\u202e to`},
		{"escapes in what is fixed", setting("--seed", "1\x1b[2J\u202e"), 2,
			`--seed is "42", but "1\x1b[2J\u202e" in the run`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var x map[string]any
			spmdtest.Must(t, json.Unmarshal(good, &x))
			tc.forge(x["meta"].(map[string]any))
			text, err := json.Marshal(x)
			spmdtest.Must(t, err)
			dir := only(t, dir, 2)
			traintest.Write(t, stepDir(dir, 2), "index.json", string(text))
			traintest.Write(t, stepDir(dir, 2), "COMPLETE",
				fmt.Sprintf("lockstep checkpoint 1\n%d bytes of index.json, SHA-256 %x\n",
					len(text), sha256.Sum256(text)))
			p := train(t, 0, append(args, "--checkpoint", dir)...)
			if p.Status != tc.status || !strings.Contains(p.Stderr, tc.want) ||
				tc.status == 2 && len(ours(p.Stderr)) != 1 {
				t.Errorf("status %d, want %d and %q:\n%s", p.Status, tc.status, tc.want, p.Stderr)
			}
			if strings.ContainsAny(p.Stderr, "\x1b\a\u009b\u202e") {
				t.Errorf("it gets at the terminal: %q", p.Stderr)
			}
		})
	}
}
