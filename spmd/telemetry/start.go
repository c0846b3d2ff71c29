package telemetry

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/process"
	"lockstep/internal/readable"
	"lockstep/internal/runfiles"
	"lockstep/spmd/internal/own"
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
	s := &start{Program: filepath.Base(os.Args[0]), Begun: now.Round(time.Second), Command: os.Args,
		Flags:   map[string]string{},
		Version: process.Version, Commit: process.Commit(), Libraries: own.Versions(), Ranks: f.w.Size(),
		Nodes:  f.w.Nodes(),
		Device: f.w.Device(), Collectives: f.w.Collectives(), Slurm: os.Getenv("SLURM_JOB_ID")}
	s.In, _ = os.Getwd() // empty if it is gone
	if fs := own.Flags(f.w); fs != nil {
		s.Program = fs.Name()
		fs.VisitAll(func(f *pflag.Flag) { s.Flags[f.Name] = f.Value.String() })
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
		s.Hosts = append(s.Hosts, host{name, readable.Ranges(ranks[name], ",")})
	}
	return s
}

// note writes the start into the folder of a run. It refuses a folder that holds something else. A
// failed write leaves nothing.
func (s *start) note(dir string) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	begun, err := suits(dir, s.State)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, runfiles.Starts)
	if !begun { // another run may do the same now
		f, err := runfiles.Create(file, runfiles.Keep)
		if err != nil {
			return err
		}
		if _, err := f.Write(line); err != nil {
			return errors.Join(err, f.Drop())
		}
		return f.Commit()
	}
	f, err := appendTo(file)
	if err != nil {
		return err
	}
	if _, err = f.Write(line); err == nil {
		err = f.Sync()
	} else {
		err = errors.Join(err, cutLast(f))
	}
	return errors.Join(err, f.Close())
}

// errSaysNothing means that a file of starts has no start, as after a full disk.
var errSaysNothing = errors.New("does not say of which run it is")

// suits refuses a folder that does not suit a run with this state. It says whether such a run has
// begun there. A lost or empty file of starts decides nothing about state.
func suits(dir, state string) (begun bool, err error) {
	file := filepath.Join(dir, runfiles.Starts)
	last, err := lastStart(file)
	begun = errors.Is(err, errSaysNothing)
	switch {
	case errors.Is(err, fs.ErrNotExist) || begun:
		if state == "." { // the folder's contents are the state
			return begun, nil
		}
		there, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		others := slices.DeleteFunc(there, func(e fs.DirEntry) bool {
			name := strings.TrimSuffix(e.Name(), runfiles.Partial)
			return name == runfiles.Starts || state != "" && name == runfiles.Log
		})
		switch {
		case err != nil || len(others) == 0:
			return begun, err
		case begun:
			return false, refused{fmt.Errorf("%s %w: name another folder", file, errSaysNothing)}
		}
		return false, refused{fmt.Errorf("%s is not empty, and holds no run: name another folder", dir)}
	case err != nil:
		return false, err
	case state == "" || last.State != state:
		return false, refused{fmt.Errorf("%s holds a run of %s already, begun at %s: name another folder",
			dir, readable.Line(last.Program), last.Begun.Format(time.DateTime))}
	}
	return true, nil
}

// lastStart returns the last start in a file; nil with an error if there is none.
func lastStart(file string) (last *start, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 4<<20) // the end of a longer line is no start either
	for {
		line, err := lines.ReadSlice('\n')
		s := new(start)
		// A machine that went down leaves zeros, a killed process half a line.
		if json.Unmarshal(bytes.Trim(line, "\x00"), s) == nil {
			last = s
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if last == nil {
		return nil, errSaysNothing
	}
	return last, nil
}
