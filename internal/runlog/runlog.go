// Package runlog reads what train has logged of its steps. It draws nothing: programs import it.
package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Names of files in the folder of a run.
const (
	Starts = "starts.jsonl" // a line for each start
	Log    = "log.jsonl"    // a line for each step, as --json has it
)

// Step is a line of a log. Numbers that a line lacks are nil.
type Step struct {
	Step    int      `json:"step"`
	Loss    *float64 `json:"loss"`
	LR      *float64 `json:"lr"`
	TokS    *float64 `json:"tok_s"`
	ValLoss *float64 `json:"val_loss"`
	Summary bool     `json:"summary"`
}

// Run is the steps of a run, and its name.
type Run struct {
	Name  string
	Steps []Step
}

// ErrNoSteps says that a log has no step of a run.
var ErrNoSteps = errors.New("no step of a run")

// Read reads the log of a run: a file, or the folder of a run. Where a run went on from a
// checkpoint, a step that was taken twice counts as the last time.
func Read(path string) (Run, error) {
	file := path
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		file = filepath.Join(path, Log)
	}
	f, err := os.Open(file)
	if err != nil {
		return Run{}, err
	}
	defer f.Close()
	r := Run{Name: filepath.Base(filepath.Clean(path))}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var s Step
		if isHalf(lines.Bytes()) {
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return Run{}, fmt.Errorf("%s: line %d is not JSON: %w", file, n, err)
		}
		if s.Summary || s.Step < 1 {
			continue
		}
		for len(r.Steps) > 0 && r.Steps[len(r.Steps)-1].Step >= s.Step {
			r.Steps = r.Steps[:len(r.Steps)-1]
		}
		r.Steps = append(r.Steps, s)
	}
	if err := lines.Err(); err != nil {
		return Run{}, fmt.Errorf("%s: %w", file, err)
	}
	if len(r.Steps) == 0 {
		return Run{}, fmt.Errorf("%s: %w: give the folder of a run, or a file that --json of train has written",
			file, ErrNoSteps)
	}
	return r, nil
}

// isHalf says whether a line is the beginning of an object only: the run is
// writing it now, or was killed.
func isHalf(line []byte) bool {
	return bytes.HasPrefix(line, []byte{'{'}) && !bytes.HasSuffix(line, []byte{'}'})
}
