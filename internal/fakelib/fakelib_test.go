package fakelib

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/dl"
)

func TestRun(t *testing.T) {
	for _, name := range []string{"one", "a.b (c)"} {
		t.Run(name, func(t *testing.T) {
			parent := os.Getpid()
			Run(t, func(dir string) {
				source := filepath.Join(dir, "answer.c")
				if err := os.WriteFile(source, []byte("int answer(void *p) { return *(int *)p + ADD; }"), 0o644); err != nil {
					t.Fatal(err)
				}
				if path := Build(t, dir, "libanswer.so.1", "-DADD=2", source); path != filepath.Join(dir, "libanswer.so.1") {
					t.Errorf("built %s", path)
				}
			}, []string{"FAKELIB_TEST=set"}, func(t *testing.T) {
				if os.Getpid() == parent && os.Getenv(child) == "" {
					t.Error("not in a process of its own")
				}
				if v := os.Getenv("FAKELIB_TEST"); v != "set" {
					t.Errorf("FAKELIB_TEST is %q", v)
				}
				var answer unsafe.Pointer
				if _, err := dl.Open([]dl.Sym{{Name: "answer", Slot: &answer}}, "libanswer.so.1"); err != nil {
					t.Fatal(err)
				}
				n := int32(40)
				if got := Call(answer, unsafe.Pointer(&n)); got != 42 {
					t.Errorf("answer is %d", got)
				}
			})
		})
	}
}

// What happens in a child process must reach who started it: TestOutcome is that, run by TestOutcomes.
func TestOutcome(t *testing.T) {
	outcome := os.Getenv("FAKELIB_OUTCOME")
	if outcome == "" {
		t.Skip("run by TestOutcomes")
	}
	Run(t, func(string) {}, nil, func(t *testing.T) {
		switch outcome {
		case "fail":
			t.Error("reason 4711")
		case "skip":
			t.Skip("reason 4711")
		case "exit":
			os.Exit(0)
		}
	})
}

func TestOutcomes(t *testing.T) {
	for outcome, want := range map[string]string{"pass": "--- PASS: TestOutcome ", "skip": "--- SKIP: TestOutcome ",
		"fail": "--- FAIL: TestOutcome ", "exit": "--- FAIL: TestOutcome "} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOutcome$", "-test.v")
		cmd.Env = append(os.Environ(), "FAKELIB_OUTCOME="+outcome)
		out, err := cmd.CombinedOutput()
		text := string(out)
		if !strings.Contains(text, "\n"+want) || (err != nil) != strings.Contains(want, "FAIL") {
			t.Errorf("%s: %v\n%s", outcome, err, text)
		}
		if (outcome == "fail" || outcome == "skip") && !strings.Contains(text, "reason 4711") {
			t.Errorf("%s: the reason is lost:\n%s", outcome, text)
		}
	}
}

func TestWithout(t *testing.T) {
	got := strings.Join(Without("a", "b_v2"), " ")
	if want := "-Da=absent_a -Db_v2=absent_b_v2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
