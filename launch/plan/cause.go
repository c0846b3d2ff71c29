package plan

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

	"lockstep/internal/plain"
	"lockstep/launch/exit"
)

// heard is what a job has said about its failure: a rank that spmd.Main has ended, or the launcher.
type heard struct {
	rank string // "" where a process has only panicked
	host string
	what string
	own  bool // the program says it, not the launcher
}

func (h heard) String() string {
	switch {
	case h.rank == "":
		return h.what
	case h.host == "":
		return fmt.Sprintf("rank %s: %s", h.rank, h.what)
	}
	return fmt.Sprintf("rank %s on %s: %s", h.rank, h.host, h.what)
}

// or adds what the launcher knows. A rank that has named itself knows more. One that has panicked
// does not say its number.
func (h heard) or(launcher heard) heard {
	if h.rank == "" && h.own && launcher.rank != "" {
		h.rank, h.host = launcher.rank, launcher.host
	}
	return cmp.Or(h, launcher)
}

// why adds the cause to the outcome of a failed job. It does not repeat a launcher's frame if a
// rank has said more, or the launcher has said it outside of its frames. If nobody has said
// anything, it says the status.
func (out *output) why(e outcome, err error, ranks int) outcome {
	launcher := launcherSays(out.endings, ranks)
	e.cause = out.cause.or(launcher)
	status, _ := err.(exit.Status)
	signalled := (strings.HasPrefix(launcher.what, byLauncher) || status > 128) && e.asked == 0
	switch {
	case out.cause != (heard{}), out.spoke.Load() && !signalled:
	case len(out.endings) > 0, out.heardAll && e.asked == 0:
		e.unsaid = "launch: " + e.words(err, 0) + "\n"
	}
	return e
}

// byLauncher begins a launcher's words about a rank that a signal has ended, which the rank itself
// cannot have said.
const byLauncher = "ended by "

var (
	// The last line of a program, with the log's own fields behind the message.
	errorLine = regexp.MustCompile(
		`^\d\d:\d\d:\d\d ERR (.*?) (?:[a-z_]+=\S* )*?host=(\S*) (?:[a-z_]+=\S* )*?rank=(\d+)\s*$`)
	rankMark = regexp.MustCompile(`^\d+: `)
	goDied   = regexp.MustCompile(`^(panic: |fatal error: ).*`)
	// What Open MPI's mpirun and Hydra's mpiexec say where no rank could.
	signalled = regexp.MustCompile(`process rank (\d+) with PID \d+ on node (\S+) exited on (signal \d+ \([^)]*\))`)
	exited    = regexp.MustCompile(`Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+\d+`)
	returned  = regexp.MustCompile(
		`(?s)Primary job +terminated normally, but (\d+) process(?:es)? returned\s+(?:a )?non-zero exit code`)
	hydraEnd = regexp.MustCompile(`PID \d+ RUNNING AT (\S+)\s+=\s+EXIT CODE: (\d+)`)
)

// hear returns what a line of a rank's standard error says about its failure.
func hear(line []byte) (h heard, ok bool) {
	line = line[len(rankMark.Find(line)):]
	switch {
	case bytes.Contains(line, []byte(" ERR ")):
		if m := errorLine.FindSubmatch(line); m != nil {
			return heard{string(m[3]), string(m[2]), plain.Line(string(m[1])), true}, true
		}
	case bytes.HasPrefix(line, []byte("{")) && bytes.Contains(line, []byte(`"level":"error"`)):
		var said struct {
			Host, Message string
			Rank          *int
		}
		if json.Unmarshal(line, &said) == nil && said.Rank != nil && said.Host != "" {
			return heard{strconv.Itoa(*said.Rank), plain.Line(said.Host), plain.Line(said.Message), true}, true
		}
	default:
		if m := goDied.Find(line); m != nil {
			return heard{what: plain.Line(string(m)), own: true}, true
		}
	}
	return heard{}, false
}

// launcherSays reads the frames in which a launcher tells how a job of a number of ranks ended.
// Open MPI 4's mpirun says first that a rank has failed and then which. It leaves out the second
// if the rank ends before mpirun has noted that the job runs: orte_quit passes over a job in
// state RUNNING.
func launcherSays(text []byte, ranks int) heard {
	if m := signalled.FindSubmatch(text); m != nil {
		return heard{rank: string(m[1]), host: string(m[2]), what: byLauncher + string(m[3])}
	}
	if m := exited.FindSubmatch(text); m != nil {
		return heard{rank: string(m[1]), what: "exited"}
	}
	if m := returned.FindSubmatch(text); m != nil {
		switch {
		case ranks == 1:
			return heard{rank: "0", what: "exited"}
		case string(m[1]) == "1":
			return heard{what: "a rank exited"}
		}
		return heard{what: fmt.Sprintf("%s ranks exited", m[1])}
	}
	if m := hydraEnd.FindSubmatch(text); m != nil {
		return heard{what: fmt.Sprintf("a rank on %s ended with %s", m[1], m[2])}
	}
	return heard{}
}

// listener reads the ranks' standard error by whole lines. A rank that names itself counts more
// than a Go panic.
type listener struct {
	mu    sync.Mutex
	cause heard
}

func (l *listener) listen(lines []byte) {
	for line := range bytes.Lines(lines) {
		h, ok := hear(line)
		if !ok {
			continue
		}
		l.mu.Lock()
		if h.rank != "" || l.cause == (heard{}) {
			l.cause = h
		}
		l.mu.Unlock()
	}
}

// mostTail is how many bytes of a rank's file are read for its last words.
const mostTail = 64 << 10

// listenTo reads the ends of the files of standard error that a job has left in a folder of this
// host since it began.
func (l *listener) listenTo(folder string, since time.Time) {
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
		l.listen(tail)
	}
}
