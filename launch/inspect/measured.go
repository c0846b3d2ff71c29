package inspect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"lockstep/internal/runfiles"
)

// measured is the measurements of a program: the numbers of each line of its log, by their names.
type measured struct {
	name    string
	names   []string // of numbers, as they came
	units   map[string]string
	records []map[string]float64
	whole   *measured // lines that tell of a whole run: they count where a log has no others
}

// These are the default names of the horizontal axis: the field step, or the number of the line in
// a run without it.
const (
	stepField = "step"
	lineField = "line"
)

// readRun reads the log of a run: a file, or the folder of a run. Lines of the same step are one.
// If a run resumed from a checkpoint, the last time counts of a step that was taken twice.
func readRun(path string) (*measured, error) {
	file := path
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		file = filepath.Join(path, runfiles.Log)
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) && file != path {
		return nil, noRun(path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &measured{name: filepath.Base(filepath.Clean(path)), units: map[string]string{}, whole: &measured{}}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if isHalf(lines.Bytes()) {
			continue
		}
		if err := r.line(lines.Bytes(), n); err != nil {
			return nil, fmt.Errorf("%s: line %d is no object of JSON: %w", file, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(r.records) == 0 {
		r.names, r.records = r.whole.names, r.whole.records
	}
	if len(r.records) == 0 {
		return nil, fmt.Errorf("%s: no number in it: give the folder of a run, or a file that --json has written", file)
	}
	return r, nil
}

// noRun returns the error of a folder without the log of a run. It names the logs that there are.
func noRun(folder string) error {
	if logs, err := filepath.Glob(filepath.Join(folder, "*.jsonl")); err == nil && len(logs) > 0 {
		return fmt.Errorf("%s is no folder of --run-dir, since it has no %s: name files in it, such as %s", folder,
			runfiles.Log, logs[0])
	}
	return fmt.Errorf("%s is no folder of --run-dir, since it has no %s: give one, or a file that --json has written",
		folder, runfiles.Log)
}

// line takes line number n.
func (r *measured) line(text []byte, n int) error {
	d := json.NewDecoder(bytes.NewReader(text))
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t != json.Delim('{'):
		return fmt.Errorf("it begins with %v", t)
	}
	rec := map[string]float64{}
	var names []string
	summary := false
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return err
		}
		name := key.(string)
		switch {
		case name == "units":
			var units map[string]string
			if json.Unmarshal(value, &units) == nil {
				maps.Copy(r.units, units)
			}
		case name == "summary" && string(value) == "true":
			summary = true
		default:
			var x *float64
			if json.Unmarshal(value, &x) == nil && x != nil {
				rec[name] = *x
				names = append(names, name)
			}
		}
	}
	if _, err := d.Token(); err != nil { // its end
		return err
	}
	if len(rec) == 0 {
		return nil
	}
	to := r
	if summary {
		to = r.whole
	}
	for _, name := range names {
		if !to.has(name) {
			to.names = append(to.names, name)
		}
	}
	if _, ok := rec[lineField]; !ok {
		rec[lineField] = float64(n)
	}
	to.add(rec)
	return nil
}

// add adds a record behind the records of earlier steps.
func (r *measured) add(rec map[string]float64) {
	step, ok := rec[stepField]
	for ok && len(r.records) > 0 {
		last := r.records[len(r.records)-1]
		at, has := last[stepField]
		if !has || at < step {
			break
		}
		if at == step && last[lineField] == rec[lineField]-1 { // the rest of the same step
			maps.Copy(last, rec)
			return
		}
		r.records = r.records[:len(r.records)-1]
	}
	r.records = append(r.records, rec)
}

// has reports whether any line of the run has a number.
func (r *measured) has(name string) bool { return name == lineField || slices.Contains(r.names, name) }

// varies reports whether a number has more than one value.
func (r *measured) varies(name string) bool {
	first, some := 0.0, false
	for _, rec := range r.records {
		x, ok := rec[name]
		if ok && some && x != first {
			return true
		}
		if ok && !some {
			first, some = x, true
		}
	}
	return false
}

// isHalf reports whether a line is only the beginning of an object. The run is writing it now, or
// was killed.
func isHalf(line []byte) bool {
	return bytes.HasPrefix(line, []byte{'{'}) && !bytes.HasSuffix(line, []byte{'}'})
}
