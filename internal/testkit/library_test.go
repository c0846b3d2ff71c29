package testkit

import (
	"bytes"
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
			RunWithLibraries(t, func(dir string) {
				source := filepath.Join(dir, "answer.c")
				if err := os.WriteFile(source, []byte("int answer(void *p) { return *(int *)p + ADD; }"),
					0o644); err != nil {
					t.Fatal(err)
				}
				path := BuildLibrary(t, dir, "libanswer.so.1", "-DADD=2", source)
				if path != filepath.Join(dir, "libanswer.so.1") {
					t.Errorf("built %s", path)
				}
			}, []string{"TESTKIT_TEST=set"}, func(t *testing.T) {
				if os.Getpid() == parent && os.Getenv(child) == "" {
					t.Error("not in a process of its own")
				}
				if v := os.Getenv("TESTKIT_TEST"); v != "set" {
					t.Errorf("TESTKIT_TEST is %q", v)
				}
				var answer unsafe.Pointer
				if _, err := dl.Open([]dl.Sym{{Name: "answer", Slot: &answer}}, "libanswer.so.1"); err != nil {
					t.Fatal(err)
				}
				n := int32(40)
				if got := CallC(answer, unsafe.Pointer(&n)); got != 42 {
					t.Errorf("answer is %d", got)
				}
			})
		})
	}
}

// TestOutcome runs in a child process. TestOutcomes checks that its results reach the parent.
func TestOutcome(t *testing.T) {
	outcome := os.Getenv("TESTKIT_OUTCOME")
	if outcome == "" {
		t.Skip("run by TestOutcomes")
	}
	RunWithLibraries(t, func(string) {}, nil, func(t *testing.T) {
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
		cmd.Env = append(os.Environ(), "TESTKIT_OUTCOME="+outcome)
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
	got := strings.Join(WithoutSymbols("a", "b_v2"), " ")
	if want := "-Da=absent_a -Db_v2=absent_b_v2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A library is compiled once for a machine, in any folder of its sources, until its sources, their
// includes, its flags or the compiler change. It is compiled again if the kept file was cut off.
func TestKept(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ran := filepath.Join(dir, "ran")
	t.Setenv(keptEnv, folder)
	t.Setenv("CC", write("compiler",
		"#!/bin/sh\ncase \" $* \" in *\" -E \"*) ;; *) echo >>"+ran+";; esac\nexec cc \"$@\"\n"))
	write("part.h", "enum { PART = 1 };")
	source := write("answer.c", "#include \"part.h\"\nint answer(void *p) { return PART + ADD + *(int *)p; }")
	want := 0
	build := func(what string, compiled int, args ...string) string {
		t.Helper()
		path := BuildLibrary(t, t.TempDir(), "libanswer.so.1", append(args, source)...)
		b, err := os.ReadFile(ran)
		if want += compiled; err != nil || len(b) != want {
			t.Errorf("%s: compiled %d times so far, want %d; %v", what, len(b), want, err)
		}
		return path
	}
	first := build("at first", 1, "-DADD=2")
	again := build("again", 0, "-DADD=2")
	a, err := os.ReadFile(first)
	b, err2 := os.ReadFile(again)
	if err != nil || err2 != nil || !bytes.Equal(a, b) {
		t.Errorf("what is copied differs: %d and %d bytes, %v, %v", len(a), len(b), err, err2)
	}
	build("another flag", 1, "-DADD=3")
	build("a flag of the linker", 1, "-DADD=2", "-lm")
	write("part.h", "enum { PART = 2 };")
	build("another header", 1, "-DADD=2")
	build("the other header again", 0, "-DADD=2")
	clone := filepath.Join(t.TempDir(), "another", "clone")
	if err := os.CopyFS(clone, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	source = filepath.Join(clone, "answer.c")
	build("in another clone", 0, "-DADD=2", "-I"+clone)
	kept, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(kept) != 4 {
		t.Fatalf("kept are %q, %v", kept, err)
	}
	for _, file := range kept {
		if err := os.Truncate(file, 1000); err != nil {
			t.Fatal(err)
		}
	}
	build("cut off", 1, "-DADD=2")
	t.Setenv(keptEnv, "off")
	build("none is kept", 1, "-DADD=2")
}
