package mpirun

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// FuzzReport makes reports of any output.
func FuzzReport(f *testing.F) {
	f.Add("=== RUN   TestX\nx_test.go:1: wrong\n"+markFailed+"\n", "mpirun has exited\r\n", byte(3))
	f.Add("goroutine 1 [running]:\ntesting.tRunner(0x1)\n\t/usr/lib/go\nmain.main()\n\tmain.go:1\nx\n", "", byte(200))
	f.Add(strings.Repeat("line\n", 100), strings.Repeat("\n", 30), byte(1))
	f.Add("", "", byte(2))
	f.Fuzz(func(t *testing.T, out, own string, ranks byte) {
		if len(out) > 4096 {
			return // of 200 ranks it would take seconds
		}
		lines := clean(out)
		for _, line := range lines {
			if noise.MatchString(line) || frame.MatchString(line) || strings.Contains(line, "\n") {
				t.Errorf("left in: %q", line)
			}
		}
		for n := 3; n < 12; n++ {
			got := ends(lines, n)
			if len(got) > n || len(lines) <= n && !slices.Equal(got, lines) {
				t.Fatalf("%d lines of %d, want at most %d", len(got), len(lines), n)
			}
			if len(lines) > n && (got[0] != lines[0] || got[len(got)-1] != lines[len(lines)-1]) {
				t.Errorf("%d lines of %d without the first or the last: %q", n, len(lines), got)
			}
		}
		size := int(ranks)%200 + 1
		text := report(slices.Repeat([]string{out}, size), own)
		if n := strings.Count(text, "\n"); n > max(shownLines, 8*size)+shownLines/3 {
			t.Errorf("a report of %d lines for %d ranks", n, size)
		}
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "rank") && !strings.HasPrefix(line, "mpirun| ") {
				t.Errorf("a line of nobody: %q", line)
			}
		}
	})
}

// Only the ends of a very long output are read, and the mark at its end counts.
func TestReadEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	for _, tc := range []struct{ text, want string }{
		{"", ""},
		{"0123456789abcdef", "0123456789abcdef"},
		{"0123456789abcdefg", "01234567\n... 1 bytes left out ...\n9abcdefg"},
	} {
		testkit.Must(t, os.WriteFile(path, []byte(tc.text), 0o600))
		if got, err := readEnds(path, 8); err != nil || got != tc.want {
			t.Errorf("%q, %v, want %q", got, err, tc.want)
		}
	}
	if got, err := readEnds(path+".none", 8); err == nil {
		t.Errorf("a file that is missing: %q", got)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skipf("no large files here: %v", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	testkit.Must(t, err)
	defer f.Close()
	if _, err := f.WriteString("\n" + markFailed + "\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := readEnds(path, shownBytes); err != nil || !hasLine(got, markFailed) || len(got) > 2*shownBytes+100 {
		t.Errorf("%d bytes, %v, want the mark at the end", len(got), err)
	}
}
