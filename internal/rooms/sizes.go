package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// kinds are what lines are counted by, in the order of ceilings' columns.
var kinds = [...]string{"Go", "generated", "tests", "C"}

// sizes are lines of each kind.
type sizes [len(kinds)]int

// kindOf returns which kind a file is of, or -1.
func kindOf(name string) int {
	switch base := path.Base(name); path.Ext(base) {
	case ".go":
		switch {
		case strings.HasPrefix(base, "kernels_spmd"):
			return 1 // spmdgen's: readers see in it only what became of a kernel
		case strings.HasSuffix(base, "_test.go"):
			return 2
		}
		return 0
	case ".c", ".h", ".cu", ".cuh":
		return 3
	}
	return -1
}

// count returns the lines of each room in the checkout in dir. A file belongs to the room of the
// next package above it. Row "all" is their sum.
func count(dir string) (map[string]sizes, error) {
	of := map[string]sizes{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		below, relErr := filepath.Rel(dir, name)
		if err != nil || relErr != nil || below == "." {
			return err
		}
		if d.IsDir() {
			if below == "bin" || strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		kind := kindOf(name)
		if kind < 0 {
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var at *room
		for folder := path.Dir(filepath.ToSlash(below)); at == nil && folder != "."; folder = path.Dir(folder) {
			at = roomOf(folder)
		}
		if at == nil {
			return fmt.Errorf("%s is in no room", below)
		}
		for _, row := range []string{at.name, "all"} {
			n := of[row]
			n[kind] += bytes.Count(b, []byte("\n"))
			of[row] = n
		}
		return nil
	})
	return of, err
}

// ceilings is the file that says how many lines a room may have.
const ceilings = "internal/rooms/ceilings.txt"

// table prints rows of sizes, those of the house in its order, then their sum.
func table(of map[string]sizes) string {
	var b strings.Builder
	line := func(name string, cells ...any) {
		fmt.Fprintf(&b, "%-12s%8v%11v%8v%8v\n", append([]any{name}, cells...)...)
	}
	line("", kinds[0], kinds[1], kinds[2], kinds[3])
	for i := range len(house) + 1 {
		name := "all"
		if i < len(house) {
			name = house[i].name
		}
		n := of[name]
		line(name, n[0], n[1], n[2], n[3])
	}
	return b.String()
}

// parse reads what table has printed.
func parse(text string) (map[string]sizes, error) {
	of := map[string]sizes{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var name string
		var n sizes
		if i == 0 {
			continue
		}
		if _, err := fmt.Sscan(line, &name, &n[0], &n[1], &n[2], &n[3]); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", ceilings, line, err)
		}
		of[name] = n
	}
	return of, nil
}

// lower writes ceilings anew, and returns them: each is what its room has now. So lines may move
// from room to room, but all together must not be more than before.
func lower(dir string) (string, error) {
	now, err := count(dir)
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, ceilings)
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	most, err := parse(string(text))
	if err != nil {
		return "", err
	}
	for kind, n := range now["all"] {
		if ceiling := most["all"][kind]; n > ceiling {
			return "", fmt.Errorf("%d lines of %s, and the ceiling is %d: take lines away", n, kinds[kind], ceiling)
		}
	}
	return table(now), os.WriteFile(name, []byte(table(now)), 0o666)
}
