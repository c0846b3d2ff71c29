package job

import (
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

func TestDifferences(t *testing.T) {
	list := func(program string, more ...Setting) []Setting {
		return append([]Setting{given("build", "x"), given(programSetting, program)}, more...)
	}
	for _, tc := range []struct {
		name  string
		lists [][]Setting
		want  string
	}{
		{"the same", [][]Setting{list("a", given("--n", "1")), list("a", setting("--n", "1"))}, ""},
		{"defaults of machines", [][]Setting{list("a", setting("--threads", "8")),
			list("a", setting("--threads", "16"))}, ""},
		{"a default of a machine, and a choice",
			[][]Setting{list("a", setting("--threads", "8")), list("a", given("--threads", "16"))},
			different + "--threads is 8 on rank 0, 16 on rank 1"},
		{"another program", [][]Setting{list("a", given("--n", "1")),
			list("b", given("--m", "2")), list("a")},
			different + "program is a on ranks 0, 2, b on rank 1"},
		{"text that is no word", [][]Setting{list("a", given("--prompt", "")),
			list("a", given("--prompt", "a b")), list("a", given("--prompt", "\x1b[31m"))},
			different + `--prompt is "" on rank 0, "a b" on rank 1, "\x1b[31m" on rank 2`},
		{"one that only some have", [][]Setting{list("a"), list("a", given("--new", "1"))},
			different + "--new is unknown on rank 0, 1 on rank 1"},
	} {
		if got := Differences(tc.lists); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// Long values that differ somewhere in the middle are two values.
func TestLongDifferences(t *testing.T) {
	long := func(middle string) string {
		text := make([]byte, 1000)
		for i := range text {
			text[i] = 'x'
		}
		return string(text) + middle + string(text)
	}
	got := Differences([][]Setting{{given("--data", long("1"))}, {given("--data", long("2"))}})
	if len(got) > 400 || got == "" {
		t.Errorf("%q", got)
	}
}

func TestBuildID(t *testing.T) {
	if id := buildID(); len(id) < 8 {
		t.Errorf("the build of this test is %q", id)
	}
}

func BenchmarkSettings(b *testing.B) {
	var c Flags
	for b.Loop() {
		Sum(c.Settings(nil))
	}
}

// Ranks that are goroutines may have used up the files of the process.
func TestSettingsWithoutFiles(t *testing.T) {
	before := (&Flags{}).Settings(nil)
	var files unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: files.Max}))
	after := (&Flags{}).Settings(nil)
	testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &files))
	if text := Differences([][]Setting{before, after}); text != "" {
		t.Error(text)
	}
}
