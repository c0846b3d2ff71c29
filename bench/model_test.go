package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/bench/measure"
)

// The command reads the file of a sweep.
func TestModelCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "measured.jsonl")
	text := ""
	for _, us := range []string{"2", "2", "2.01", "2.08", "2.8", "10", "82"} {
		text += `{"app":"sweep","side":"lockstep","op":"allreduce","ranks":2,"dtype":"float32","bytes":` + "8" +
			strings.Repeat("0", strings.Count(text, "\n")) + `,"median_us":` + us + ",\"device\":\"host\"}\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{file}, 0, "Measured on one number of ranks"},
		{[]string{"--side=PyTorch", file}, 1, `no all-reduces of "PyTorch"`},
		{nil, 1, "model wants files"},
		{[]string{file + ".none"}, 1, "no such file"},
	} {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		out, errs, err := measure.Outputs([]string{"SPMDTEST_PROGRAM=1"},
			append([]string{self, "model"}, tc.args...)...)
		text := out + errs
		if err != nil {
			text += err.Error()
		}
		if (err != nil) != (tc.status != 0) || !strings.Contains(text, tc.want) {
			t.Errorf("%q: %v\n%s", tc.args, err, text)
		}
	}
}
