package main

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/testkit"
)

// No room has more lines than its row of ceilings.txt, and the rows have no more than the last one
// together: a change that adds lines takes as many away. A row that is far above its room is old.
func TestCeilings(t *testing.T) {
	const slack = 100
	text, err := os.ReadFile(filepath.Join(root, ceilings))
	testkit.Must(t, err)
	most, err := parse(string(text))
	testkit.Must(t, err)
	now, err := count(root)
	testkit.Must(t, err)
	var sum sizes
	for _, r := range house {
		for kind, n := range now[r.name] {
			ceiling := most[r.name][kind]
			sum[kind] += ceiling
			if n > ceiling {
				t.Errorf("room %s has %d lines of %s, its ceiling is %d: take as many lines away, "+
					"in any room, then type go run ./internal/rooms", r.name, n, kinds[kind], ceiling)
			}
			if n+slack < ceiling {
				t.Errorf("room %s has %d lines of %s, its ceiling is %d: go run ./internal/rooms lowers it",
					r.name, n, kinds[kind], ceiling)
			}
		}
	}
	for kind, n := range sum {
		if n > most["all"][kind] {
			t.Errorf("the ceilings are %d lines of %s together, more than all: %d", n, kinds[kind], most["all"][kind])
		}
	}
}

// A tree of four files is counted by kind, each in the room of the package above it.
func TestCount(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cuda/a.go": "1\n2\n", "cuda/a_test.go": "1\n", "cuda/testdata/b.c": "1\n2\n3\n", "cuda/.hidden/c.go": "1\n",
		"spmd/vector/kernels_spmd.go": "1\n2\n3\n4\n", "spmd/vector/page.md": "1\n", "bin/d.go": "1\n",
	} {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o777))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	got, err := count(dir)
	testkit.Must(t, err)
	want := map[string]sizes{"libraries": {2, 0, 1, 3}, "helpers": {0, 4, 0, 0}, "all": {2, 4, 1, 3}}
	for row := range want {
		if len(got) != len(want) || got[row] != want[row] {
			t.Errorf("%s: %v, want %v", row, got[row], want[row])
		}
	}
	again, err := parse(table(got))
	if err != nil || again["all"] != want["all"] || again["libraries"] != want["libraries"] {
		t.Errorf("the table is read as %v, %v", again, err)
	}
}

// Rows become what rooms have, whose lines may move; their sum goes down, and never up.
func TestLower(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		testkit.Must(t, err)
	}
	must(os.MkdirAll(filepath.Join(dir, filepath.Dir(ceilings)), 0o777))
	must(os.WriteFile(filepath.Join(dir, filepath.Dir(ceilings), "a.go"), []byte("1\n2\n"), 0o666))
	for _, tc := range []struct{ room, all, after int }{{5, 5, 2}, {2, 2, 2}, {0, 2, 2}, {2, 1, 1}} {
		old := table(map[string]sizes{"tests": {tc.room}, "all": {tc.all}})
		must(os.WriteFile(filepath.Join(dir, ceilings), []byte(old), 0o666))
		got, err := lower(dir)
		text, e := os.ReadFile(filepath.Join(dir, ceilings))
		must(e)
		want := table(map[string]sizes{"tests": {2}, "all": {tc.after}})
		if string(text) != want || (err == nil) != (got == want) || (err != nil) != (tc.all < 2) {
			t.Errorf("ceilings of %d and %d become\n%s, %v", tc.room, tc.all, text, err)
		}
	}
}
