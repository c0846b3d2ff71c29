package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// A run logs the memory that it needs, and is refused if there is less.
func TestMemoryTold(t *testing.T) {
	spmdtest.Ranks(t, 2)
	_, log := finish(t, 2, smallRun(t, 1)...)
	if !regexp.MustCompile(`needs \d+(\.\d+)? [kM]B of \d+(\.\d+)? [GT]B free=`).MatchString(log) {
		t.Errorf("no line tells what the run needs:\n%s", log)
	}
	p := train(t, 2, append(smallRun(t, 1), "--seq", "1000", "--batch", "1000000", "--global-batch", "2000000")...)
	if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 ||
		!strings.Contains(lines[0], "--batch 1000000: a rank needs ") ||
		!strings.Contains(lines[0], "the largest --batch that fits is ") {
		t.Errorf("status %d, stderr:\n%s", p.Status, p.Stderr)
	}
	p = train(t, 2, append(smallRun(t, 1), "--seq", "1000", "--batch", "2000000000", "--global-batch", "2000000000")...)
	if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 ||
		!strings.Contains(lines[0], "micro-steps of more than 2147483647 tokens") {
		t.Errorf("status %d, stderr:\n%s", p.Status, p.Stderr)
	}
	finish(t, 2, append(smallRun(t, 1), "--batch", "2000000000")...) // a rank's part is 3
	// The text has 6001 tokens. A step has 300, and a rank 9 sequences of 16.
	args := smallRun(t, 1, "--batch", "0")
	at := 0
	for i, a := range args {
		if a == "--global-batch" {
			at = i
		}
	}
	_, log = finish(t, 2, append(args[:at:at], args[at+2:]...)...)
	if !strings.Contains(log, " batch=9 ") || !strings.Contains(log, " global_batch=18 ") {
		t.Errorf("--batch 0 took another one:\n%s", log)
	}
	_, log = finish(t, 2, args...)
	if !strings.Contains(log, " batch=3 ") || !strings.Contains(log, " global_batch=5 ") { // a rank's part
		t.Errorf("--batch 0 with --global-batch 5 took another one:\n%s", log)
	}
}

// A run keeps its type of activations when it resumes, unless the user asks for another. Each
// checkpoint has its line in the log.
func TestResumeKeepsDType(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 2)
	dir := t.TempDir()
	args := smallRun(t, 4, "--checkpoint", dir, "--save-every", "2")
	_, log := finish(t, 2, append(args, "--dtype", "bfloat16")...)
	for _, n := range []int{2, 4} {
		size := int64(0)
		err := filepath.WalkDir(stepDir(dir, n), func(path string, d fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".safetensors" {
				st, err := d.Info()
				if err != nil {
					return err
				}
				size += st.Size()
			}
			return err
		})
		spmdtest.Must(t, err)
		line := regexp.MustCompile(fmt.Sprintf(`checkpoint saved steps=%d to=%s bytes=%d seconds=\d+\.\d\d `,
			n, regexp.QuoteMeta(stepDir(dir, n)), size))
		if !line.MatchString(log) {
			t.Errorf("no line as %s in:\n%s", line, log)
		}
	}
	_, log = finish(t, 2, append(args, "--steps", "5")...)
	if !strings.Contains(log, "dtype=bfloat16") || strings.Contains(log, "--dtype from") {
		t.Errorf("the run went on with another type:\n%s", log)
	}
	_, log = finish(t, 2, append(args, "--steps", "6", "--dtype", "float32")...)
	if !strings.Contains(log, "dtype=float32") || !strings.Contains(log, "--dtype from bfloat16 to float32") {
		t.Errorf("--dtype float32 was not taken:\n%s", log)
	}
}
