package runfolder

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/plain"
	"lockstep/internal/ranges"
	"lockstep/internal/runlog"
	"lockstep/internal/version"
)

// start is a line of starts.jsonl.
type start struct {
	Program     string            `json:"program"`
	Begun       time.Time         `json:"begun"`
	Command     []string          `json:"command"`
	In          string            `json:"in"` // the working folder
	Flags       map[string]string `json:"flags"`
	Version     string            `json:"version"` // of Lockstep
	Commit      string            `json:"commit,omitempty"`
	Libraries   map[string]string `json:"libraries"`
	Ranks       int               `json:"ranks"`
	Nodes       int               `json:"nodes"`
	Hosts       []host            `json:"hosts"`
	Device      string            `json:"device"`
	Collectives string            `json:"collectives"`
	Slurm       string            `json:"slurm_job,omitempty"`
	State       string            `json:"state,omitempty"` // as seen from the folder
}

// host is where some of the ranks are.
type host struct {
	Name  string `json:"name"`
	Ranks string `json:"ranks"` // such as 0-3
}

// start describes this start.
func (f *Folder) start(now time.Time, hosts []string) *start {
	in := insideOf(f.w)
	s := &start{Program: filepath.Base(os.Args[0]), Begun: now.Round(time.Second), Command: os.Args, Flags: map[string]string{},
		Version: version.Number, Commit: version.Commit(), Libraries: in.Libraries(), Ranks: f.w.Size(), Nodes: f.w.Nodes(),
		Device: f.w.Device(), Collectives: f.w.Collectives(), Slurm: os.Getenv("SLURM_JOB_ID")}
	s.In, _ = os.Getwd() // empty where it is gone
	if in.Flags != nil {
		s.Program = in.Flags.Name()
		in.Flags.VisitAll(func(f *pflag.Flag) { s.Flags[f.Name] = f.Value.String() })
	}
	var names []string
	ranks := map[string][]int{}
	for r, name := range hosts {
		if ranks[name] == nil {
			names = append(names, name)
		}
		ranks[name] = append(ranks[name], r)
	}
	for _, name := range names {
		s.Hosts = append(s.Hosts, host{name, ranges.Text(ranks[name], ",")})
	}
	return s
}

// note writes the start into the folder of a run. It refuses a folder that holds something else.
func (s *start) note(dir string) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	begun, err := suits(dir, s.State)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, runlog.Starts)
	var f *os.File
	if begun {
		f, err = appendTo(file)
	} else { // another run may do the same now
		f, err = os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	}
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// suits refuses a folder that is none for a run with this state. It says whether such a run has begun there.
func suits(dir, state string) (begun bool, err error) {
	last, err := lastStart(filepath.Join(dir, runlog.Starts))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		there, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err == nil && len(there) > 0 && state != "." { // else what is there is what the run goes on from
			err = refused{fmt.Errorf("%s is not empty, and holds no run: name another folder", dir)}
		}
		return false, err
	case err != nil:
		return false, refused{err}
	case state == "" || last.State != state:
		return false, refused{fmt.Errorf("%s holds a run of %s already, begun at %s: name another folder", dir, plain.Line(last.Program), last.Begun.Format(time.DateTime))}
	}
	return true, nil
}

// lastStart returns the last start that is noted in a file; nil with an error where there is none.
func lastStart(file string) (last *start, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		s := new(start)
		if json.Unmarshal(lines.Bytes(), s) == nil { // a killed process may have left half a line
			last = s
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if last == nil {
		return nil, fmt.Errorf("%s does not say of which run it is: name another folder", file)
	}
	return last, nil
}
