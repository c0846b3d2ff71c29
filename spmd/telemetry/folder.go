package telemetry

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"lockstep/internal/cli"
	"lockstep/internal/runfiles"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/library"
)

// noFolder as the value of --run-dir means no folder.
const noFolder = "off"

// runsEnv is an environment variable. It names the folder for runs without a name; the default is
// "runs" in the working folder. If it is "off", a run has a folder only if --run-dir names one.
// spmdtest sets it so for the programs that it starts.
const runsEnv = "LOCKSTEP_RUNS"

// FolderFlag adds --run-dir to the flags of a program. It returns the value, for FolderConfig.Dir.
func FolderFlag(fs *pflag.FlagSet) *string {
	dir := fs.String("run-dir", "", "`DIR` for what is to be known of the run later: flags, versions, "+
		"measurements; off is none (default runs/<date>-<program>-<time>)")
	spmd.MayDiffer(fs, "run-dir") // rank 0's counts
	cli.Group(fs, cli.Output, "run-dir")
	return dir
}

// FolderConfig says which folder to open. The zero value is a new folder.
type FolderConfig struct {
	// Dir is the folder. "off" is none; "" is Default. If that is "" too, it is a new folder
	// such as runs/2026-11-23-heat-142824: the date, the program and the time of the start.
	Dir string
	// Default is the folder if Dir is "".
	Default string
	// State is the folder that the program continues from, such as its checkpoints; "" is none. It
	// may be the folder of the run. A start goes on with a run in a folder only if it has the same
	// State.
	State string
}

// Folder is the folder of a run. The methods of a nil Folder do nothing.
type Folder struct {
	w     *spmd.World
	dir   string
	named bool // by FolderConfig: an unwritten file is then an error

	// Fields of rank 0:
	mu     sync.Mutex
	log    *os.File
	failed error // the first that could not be written
	cancel func()
}

// opened is rank 0's answer to the others.
type opened struct {
	Dir   string // "" if there is none
	Error string
	Full  bool // the error is the disk's, not the caller's
}

// Open opens the folder of a run. It makes a missing one, and notes there how this run was started.
// A line of the log says which folder it is.
//
// A folder that is not empty is refused, as bad input (see spmd.Usage), unless it holds a run that
// this start goes on with: see FolderConfig.State. If an unnamed folder cannot be made, OpenFolder
// logs a warning and returns a nil Folder.
//
// Collective over all ranks, blocking. FolderConfig counts on rank 0.
func OpenFolder(w *spmd.World, c FolderConfig) (*Folder, error) {
	hosts, err := hostdata.AllGather(w.Comm(), hostname())
	if err != nil {
		return nil, err
	}
	f := &Folder{w: w, named: c.Dir != ""}
	var said opened
	if w.Rank() == 0 {
		said.Dir, err = f.open(c, hosts)
		switch {
		case err != nil && !f.named && !errors.As(err, new(refused)):
			w.Log().Warn().Err(err).Msg("this run has no folder")
			said.Dir = ""
		case err != nil:
			said.Error, said.Full = c.about(err).Error(), isFull(err)
		}
	}
	if said, err = hostdata.Broadcast(w.Comm(), said, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	switch {
	case said.Full:
		return nil, errors.New(said.Error)
	case said.Error != "":
		return nil, spmd.Usage(errors.New(said.Error))
	}
	if said.Dir == "" {
		return nil, nil
	}
	f.dir = said.Dir
	w.Log().Info().Str("folder", f.dir).Msg("run")
	return f, nil
}

// CheckFolder refuses a folder that OpenFolder would refuse, before the program has begun anything.
// It changes nothing. Not collective.
func CheckFolder(c FolderConfig) error {
	dir := cmp.Or(c.Dir, c.Default)
	if dir == "" || c.Dir == noFolder || c.Dir == "" && os.Getenv(runsEnv) == noFolder {
		return nil
	}
	state, err := relative(dir, c.State)
	if err == nil {
		_, err = suits(dir, state)
	}
	if !errors.As(err, new(refused)) && c.Dir == "" { // the run goes on without, with a warning
		return nil
	}
	return c.about(err)
}

// isFull reports whether a write failed for want of room: another start may have it.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// about adds to an error the setting that names the folder.
func (c FolderConfig) about(err error) error {
	if err == nil || c.Dir == "" {
		return err
	}
	return fmt.Errorf("--run-dir: %w", err)
}

func hostname() string {
	name, _ := os.Hostname() // empty if it has none
	return name
}

// refused is why a folder does not suit this run.
type refused struct{ error }

// open makes the folder and the files in it, on rank 0. It returns "" if there is to be none.
func (f *Folder) open(c FolderConfig, hosts []string) (dir string, err error) {
	parent := cmp.Or(os.Getenv(runsEnv), "runs")
	now := time.Now()
	s := f.start(now, hosts)
	dir = cmp.Or(c.Dir, c.Default)
	switch {
	case c.Dir == noFolder, c.Dir == "" && parent == noFolder:
		return "", nil
	case dir == "":
		if dir, err = newFolder(parent, s.Program, now); err != nil {
			return "", err
		}
	default:
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return "", err
		}
	}
	if s.State, err = relative(dir, c.State); err != nil {
		return "", err
	}
	if err := s.note(dir); err != nil {
		return "", err
	}
	if f.log, err = appendTo(filepath.Join(dir, runfiles.Log)); err != nil {
		return "", err
	}
	f.dir = dir
	f.cancel = library.Emitted(f.w, f.emitted)
	return dir, nil
}

// newFolder makes a folder for a run that has no name.
func newFolder(parent, program string, now time.Time) (string, error) {
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", err
	}
	name := filepath.Join(parent, now.Format(time.DateOnly)+"-"+program+"-"+now.Format("150405"))
	dir := name
	for n := 2; ; n++ { // two may be started in the same second
		if err := os.Mkdir(dir, 0o777); !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
		dir = fmt.Sprintf("%s-%d", name, n)
	}
}

// relative returns a path as seen from a folder, so that both may be moved together. That of "" is
// "".
func relative(dir, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}

// appendTo opens a file of lines to append to it. It cuts off a last line that a killed process has
// left incomplete.
func appendTo(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	if err := cutLast(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func cutLast(f *os.File) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	piece := make([]byte, 64<<10)
	for at := end; at > 0; {
		n := min(at, int64(len(piece)))
		at -= n
		if _, err := f.ReadAt(piece[:n], at); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(piece[:n], '\n'); i >= 0 {
			if whole := at + int64(i) + 1; whole < end {
				return f.Truncate(whole)
			}
			return nil
		}
	}
	return f.Truncate(0)
}

// Path returns the path of something in the folder; "" if there is no folder. Other nodes may not
// see it.
func (f *Folder) Path(elem ...string) string {
	if f == nil {
		return ""
	}
	return filepath.Join(append([]string{f.dir}, elem...)...)
}

// emitted takes a line that the program has emitted.
func (f *Folder) emitted(line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.log == nil || f.failed != nil {
		return
	}
	if _, err := f.log.Write(line); err != nil { // the run goes on
		f.fail(errors.Join(err, cutLast(f.log)))
		return
	}
}

// fail notes and logs a failed write. The caller holds mu.
func (f *Folder) fail(err error) {
	if f.failed == nil {
		f.failed = err
		f.w.Log().Warn().Err(err).Msg("the run goes on, but its folder does not get all of it")
	}
}

// Close closes the log. If the folder was asked for by name, it returns the writes that failed. A
// second Close does nothing. Not collective.
func (f *Folder) Close() error {
	if f == nil || f.log == nil {
		return nil
	}
	f.cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.log.Close(); err != nil {
		f.fail(err)
	}
	f.log = nil
	if f.named && f.failed != nil {
		return fmt.Errorf("--run-dir: %w", f.failed)
	}
	return nil
}
