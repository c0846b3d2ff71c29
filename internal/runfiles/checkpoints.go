package runfiles

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
	StepPrefix      = "step-"    // of its name, before the number of the step
	CompleteMarker  = "COMPLETE" // the file in it that is written last
	CheckpointIndex = "index.json"
)

// Checkpoint is a complete one of package checkpoint. Nobody has checked it for damage.
type Checkpoint struct {
	Path   string
	Step   int
	Serial int // grows with every checkpoint of a folder
}

// Checkpoints returns the checkpoints in a folder, also behind links, the newest first.
func Checkpoints(folder string) ([]Checkpoint, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var all []Checkpoint
	for _, e := range entries {
		step, err := strconv.Atoi(strings.TrimPrefix(e.Name(), StepPrefix))
		if err != nil || step < 0 || !strings.HasPrefix(e.Name(), StepPrefix) {
			continue
		}
		s := Checkpoint{Path: filepath.Join(folder, e.Name()), Step: step}
		if _, err := os.Stat(filepath.Join(s.Path, CompleteMarker)); err != nil {
			continue
		}
		if s.Serial, err = serial(filepath.Join(s.Path, CheckpointIndex)); err == nil {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Checkpoint) int { return cmp.Compare(b.Serial, a.Serial) })
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
