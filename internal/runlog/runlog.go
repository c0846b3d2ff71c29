// Package runlog reads what train has logged of its steps, and draws it.
package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"lockstep/internal/figure"
)

// Names of files in the folder of a run.
const (
	Starts  = "starts.jsonl" // a line for each start
	Log     = "log.jsonl"    // a line for each step, as --json has it
	Picture = "loss.svg"
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

// Read reads the log of a run: a file, or the folder of a run. Where a run went on from a checkpoint, a step that was taken
// twice counts as the last time.
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
		return Run{}, fmt.Errorf("%s: %w: give the folder of a run, or a file that --json of train has written", file, ErrNoSteps)
	}
	return r, nil
}

// isHalf says whether a line is the beginning of an object only: the run is writing it now, or was killed.
func isHalf(line []byte) bool {
	return bytes.HasPrefix(line, []byte{'{'}) && !bytes.HasSuffix(line, []byte{'}'})
}

// mostPoints is how many points of a curve are drawn. Of more, every other one is left out, and so on.
const mostPoints = 2000

// Draw writes the loss, the validation's, the rate and the learning rate of runs by steps into a file: PNG where its name
// ends in .png, else SVG. replace says whether it may take the place of one that is there.
func Draw(file string, replace bool, runs ...Run) error {
	panels := []figure.Panel{
		{Title: "loss", X: "step", Y: "nats a token", LinearX: true, LinearY: true, Tight: true, NoMarks: true},
		{Title: "loss of the validation", X: "step", Y: "nats a token", LinearX: true, LinearY: true, Tight: true},
		{Title: "rate", X: "step", Y: "tokens a second", LinearX: true, LinearY: true, NoMarks: true},
		{Title: "learning rate", X: "step", Y: "learning rate", LinearX: true, LinearY: true, NoMarks: true},
	}
	for _, r := range runs {
		every := (len(r.Steps) + mostPoints - 1) / mostPoints
		for i, s := range r.Steps {
			for p, y := range []*float64{s.Loss, s.ValLoss, s.TokS, s.LR} {
				if last := i == len(r.Steps)-1; y != nil && (i%every == 0 || last || p == 1) {
					panels[p].Add(r.Name, float64(s.Step), *y)
				}
			}
		}
	}
	return figure.Write(file, replace, panels...)
}
