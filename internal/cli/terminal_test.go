package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

func TestCut(t *testing.T) {
	for in, want := range map[string]struct {
		text  string
		found bool
		rest  string
	}{
		"a line\n":                              {"", false, "a line\n"},
		Live("one"):                             {"one", true, ""},
		Live("one") + Live("two") + "a line\n":  {"two", true, "a line\n"},
		Live("one") + "\rtw":                    {"one", true, "\rtw"},
		"\rof its own\n" + Live("one"):          {"", false, "\rof its own\n" + Live("one")},
		Live("") + "12:00:00 ERR\n":             {"", true, "12:00:00 ERR\n"},
		"\r" + strings.Repeat("x", 9) + "\x1b[": {"", false, "\r" + strings.Repeat("x", 9) + "\x1b["},
	} {
		if text, found, rest := CutLive([]byte(in)); text != want.text || found != want.found ||
			string(rest) != want.rest {
			t.Errorf("%q: %q, %v, %q", in, text, found, rest)
		}
	}
}

// The live line is below all others, as wide as there is room for, and gone at the end.
func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{To: &out}
	print := func(line string) {
		if n, err := s.Write([]byte(line)); err != nil || n != len(line) {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	print("begun\n")
	if out.String() != "begun\n" { // as without a terminal
		t.Errorf("%q", &out)
	}
	s.Show("12345678", 6)
	print("first\n")
	print("x\n")
	s.Show("1é", 6)
	if got := testkit.ScreenLines(out.String()); !slices.Equal(got, []string{"begun", "first", "x", "1é"}) {
		t.Errorf("%q", got)
	}
	if !strings.Contains(out.String(), Live("12345")) {
		t.Errorf("%q", &out)
	}
	s.Close()
	s.Show("late", 6)
	print("end\n")
	if got := testkit.ScreenLines(out.String()); !slices.Equal(got, []string{"begun", "first", "x", "end", ""}) {
		t.Errorf("%q", got)
	}
	long := strings.Repeat("é", 9000)
	if n := len(Live(fit(long, 10000))); n > MostLive || n < MostLive-2 {
		t.Errorf("a live line of %d bytes", n)
	}
}

// Standard error ends at a terminal directly, as launch run says, or behind an mpirun that passes
// lines on unchanged.
func TestColumns(t *testing.T) {
	far := testkit.OpenTerminal(t, 77).Far
	r, pipe, err := os.Pipe()
	testkit.Must(t, err)
	defer r.Close()
	defer pipe.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	testkit.Must(t, err)
	defer file.Close()
	proc := t.TempDir()
	parent := func(comm, args, stderr string) {
		dir := filepath.Join(proc, "7")
		testkit.Must(t, os.RemoveAll(dir))
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o777))
		for name, text := range map[string]string{"comm": comm + "\n", "cmdline": args} {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
		}
		testkit.Must(t, os.Symlink(stderr, filepath.Join(dir, "fd", "2")))
	}
	for _, tc := range []struct {
		name         string
		stderr       *os.File
		variable     string
		comm, args   string
		parentStderr string
		want         int
	}{
		{"a terminal", far, "", "bash", "", "/dev/null", 77},
		{"a pipe", pipe, "", "bash", "", far.Name(), 0},
		{"launch run", pipe, "55", "mpirun", "", "/dev/null", 55},
		{"launch run into files", file, "55", "mpirun", "", far.Name(), 0},
		{"nonsense", pipe, "wide", "bash", "", far.Name(), 0},
		{"mpirun", pipe, "", "mpirun", "mpirun\x00-np\x003\x00./a\x00output", far.Name(), 77},
		{"mpirun in a pipe", pipe, "", "mpirun", "", "/dev/null", 0},
		{"mpirun that marks lines", pipe, "", "mpirun", "mpirun\x00--tag-output\x00./a", far.Name(), 0},
	} {
		parent(tc.comm, tc.args, tc.parentStderr)
		if got := columnsOf(tc.stderr, tc.variable, proc, 7); got != tc.want {
			t.Errorf("%s: %d columns, want %d", tc.name, got, tc.want)
		}
	}
}

// Colours and the live line are for terminals that know control sequences, and for people
// who want them.
func TestDumb(t *testing.T) {
	far := testkit.OpenTerminal(t, 80).Far
	for _, tc := range []struct {
		term, noColor string
		want          bool
	}{{"xterm", "", true}, {"", "", true}, {"dumb", "", false}, {"xterm", "1", false}} {
		t.Setenv("TERM", tc.term)
		t.Setenv("NO_COLOR", tc.noColor)
		if got := Colours(far); got != tc.want || Dumb() != (tc.term == "dumb") {
			t.Errorf("%+v: colours %v, dumb %v", tc, got, Dumb())
		}
	}
	t.Setenv("TERM", "xterm")
	if f, err := os.Open(os.DevNull); err != nil || Colours(f) {
		t.Errorf("%v", err)
	}
}
