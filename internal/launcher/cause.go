package launcher

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"lockstep/internal/readable"
)

// Cause is what a job has said about its failure: a rank that spmd.Main has ended, or the launcher.
type Cause struct {
	Rank string // "" where a process has only panicked
	Host string
	What string
	Own  bool // the program says it, not the launcher
}

func (c Cause) String() string {
	switch {
	case c.Rank == "":
		return c.What
	case c.Host == "":
		return fmt.Sprintf("rank %s: %s", c.Rank, c.What)
	}
	return fmt.Sprintf("rank %s on %s: %s", c.Rank, c.Host, c.What)
}

// Or adds what the launcher knows. A rank that has named itself knows more. One that has panicked
// does not say its number.
func (c Cause) Or(launcher Cause) Cause {
	if c.Rank == "" && c.Own && launcher.Rank != "" {
		c.Rank, c.Host = launcher.Rank, launcher.Host
	}
	return cmp.Or(c, launcher)
}

// bySignal begins a launcher's words about a rank that a signal has ended.
const bySignal = "ended by "

// Signalled reports whether a launcher says that a signal has ended the rank, which the rank itself
// cannot have said.
func (c Cause) Signalled() bool { return !c.Own && strings.HasPrefix(c.What, bySignal) }

var (
	// The last line of a program, with the log's own fields behind the message.
	errorLine = regexp.MustCompile(
		`^\d\d:\d\d:\d\d ERR (.*?) (?:[a-z_]+=\S* )*?host=(\S*) (?:[a-z_]+=\S* )*?rank=(\d+)\s*$`)
	rankMark = regexp.MustCompile(`^\d+: `)
	goDied   = regexp.MustCompile(`^(panic: |fatal error: ).*`)
	// What Open MPI's mpirun and Hydra's mpiexec say where no rank could.
	signalled = regexp.MustCompile(`process rank (\d+) with PID \d+ on node (\S+) exited on (signal \d+ \([^)]*\))`)
	// A rank that has called os.Exit: the status may be 0.
	improper = regexp.MustCompile(`due to process rank (\d+) with PID \d+ on\s+node (\S+) exiting improperly`)
	exited   = regexp.MustCompile(`Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+\d+`)
	returned = regexp.MustCompile(
		`(?s)Primary job +terminated normally, but (\d+) process(?:es)? returned\s+(?:a )?non-zero exit code`)
	hydraEnd = regexp.MustCompile(`PID \d+ RUNNING AT (\S+)\s+=\s+EXIT CODE: (\d+)`)
)

// Hear returns what a line of a rank's standard error says about its failure.
func Hear(line []byte) (c Cause, ok bool) {
	line = line[len(rankMark.Find(line)):]
	switch {
	case bytes.Contains(line, []byte(" ERR ")):
		if m := errorLine.FindSubmatch(line); m != nil {
			return Cause{string(m[3]), string(m[2]), readable.Line(string(m[1])), true}, true
		}
	case bytes.HasPrefix(line, []byte("{")) && bytes.Contains(line, []byte(`"level":"error"`)):
		var said struct {
			Host, Message string
			Rank          *int
		}
		if json.Unmarshal(line, &said) == nil && said.Rank != nil && said.Host != "" {
			return Cause{strconv.Itoa(*said.Rank), readable.Line(said.Host), readable.Line(said.Message), true}, true
		}
	default:
		if m := goDied.Find(line); m != nil {
			return Cause{What: readable.Line(string(m)), Own: true}, true
		}
	}
	return Cause{}, false
}

// ReadCause reads the frames in which a launcher tells how a job of a number of ranks ended.
// Open MPI 4's mpirun says first that a rank has failed and then which. It leaves out the second
// if the rank ends before mpirun has noted that the job runs: orte_quit passes over a job in
// state RUNNING.
func ReadCause(text []byte, ranks int) Cause {
	if m := signalled.FindSubmatch(text); m != nil {
		return Cause{Rank: string(m[1]), Host: string(m[2]), What: bySignal + string(m[3])}
	}
	if m := improper.FindSubmatch(text); m != nil {
		return Cause{Rank: string(m[1]), Host: string(m[2]), What: "exited without leaving MPI"}
	}
	if m := exited.FindSubmatch(text); m != nil {
		return Cause{Rank: string(m[1]), What: "exited"}
	}
	if m := returned.FindSubmatch(text); m != nil {
		switch {
		case ranks == 1:
			return Cause{Rank: "0", What: "exited"}
		case string(m[1]) == "1":
			return Cause{What: "a rank exited"}
		}
		return Cause{What: fmt.Sprintf("%s ranks exited", m[1])}
	}
	if m := hydraEnd.FindSubmatch(text); m != nil {
		return Cause{What: fmt.Sprintf("a rank on %s ended with %s", m[1], m[2])}
	}
	return Cause{}
}

// Listener reads the ranks' standard error by whole lines. A rank that names itself counts more
// than a Go panic.
type Listener struct {
	mu    sync.Mutex
	cause Cause
}

// Cause returns what was heard, or the zero Cause.
func (l *Listener) Cause() Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Listen reads whole lines.
func (l *Listener) Listen(lines []byte) {
	for line := range bytes.Lines(lines) {
		c, ok := Hear(line)
		if !ok {
			continue
		}
		l.mu.Lock()
		if c.Rank != "" || l.cause == (Cause{}) {
			l.cause = c
		}
		l.mu.Unlock()
	}
}

// mostTail is how many bytes of a rank's file are read for its last words.
const mostTail = 64 << 10

// ListenTo reads the ends of the files of standard error that a job has left in a folder of this
// host since it began.
func (l *Listener) ListenTo(folder string, since time.Time) {
	names, _ := filepath.Glob(filepath.Join(strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`,
		`\[`).Replace(folder), "rank.*.err"))
	for _, name := range names {
		if st, err := os.Stat(name); err != nil || st.ModTime().Before(since) {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if st, err := f.Stat(); err == nil {
			_, _ = f.Seek(max(0, st.Size()-mostTail), io.SeekStart)
		}
		tail, _ := io.ReadAll(io.LimitReader(f, mostTail)) // what cannot be read says nothing
		f.Close()
		l.Listen(tail)
	}
}
