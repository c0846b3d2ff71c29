// Package stepdir finds the checkpoints of package checkpoint in a folder.
package stepdir

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// These names make a folder a checkpoint.
const (
	Prefix = "step-"    // of its name, before the number of the step
	Marker = "COMPLETE" // the file in it that is written last
	Index  = "index.json"
)

// Saved is a checkpoint that is complete by its marker. Nobody has checked it for damage.
type Saved struct {
	Path   string
	Step   int
	Serial int // grows with every checkpoint of a folder
}

// List returns the checkpoints in a folder, also behind links, the newest first.
func List(folder string) ([]Saved, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var all []Saved
	for _, e := range entries {
		step, err := strconv.Atoi(strings.TrimPrefix(e.Name(), Prefix))
		if err != nil || step < 0 || !strings.HasPrefix(e.Name(), Prefix) {
			continue
		}
		s := Saved{Path: filepath.Join(folder, e.Name()), Step: step}
		if _, err := os.Stat(filepath.Join(s.Path, Marker)); err != nil {
			continue
		}
		if s.Serial, err = serial(filepath.Join(s.Path, Index)); err == nil {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Saved) int { return cmp.Compare(b.Serial, a.Serial) })
	return all, nil
}

// serial reads the serial number of an index, near its beginning.
func serial(file string) (n int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	dec := json.NewDecoder(f)
	for {
		word, err := dec.Token()
		if err != nil {
			return 0, err
		}
		if word == "serial" {
			return n, dec.Decode(&n)
		}
	}
}
