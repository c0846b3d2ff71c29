package cli

// A live line stays below the lines of a log, if a person looks at standard error: in a terminal,
// also behind mpirun or launch run. No mode of the terminal changes.
//
// The line is sent as one write: "\r", the text, "\x1b[K". The same without a text removes it.

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// TerminalVariable is set by launch run for the ranks whose standard error it brings to a
// terminal: its number of columns.
const TerminalVariable = "LOCKSTEP_TERMINAL"

const (
	begin = "\r"
	end   = "\x1b[K" // clears the rest of the line
)

// MostLive is the largest number of bytes of a live line. A pipe never mixes a write of so
// many with others (PIPE_BUF).
const MostLive = 4096

// Live returns the bytes that show text as the live line. "" removes it.
func Live(text string) string { return begin + text + end }

// CutLive removes live lines from the beginning of what a program has written so far, and returns
// the text of the last. rest is what stands behind them; it may begin with an incomplete live line.
func CutLive(b []byte) (text string, found bool, rest []byte) {
	for {
		if !bytes.HasPrefix(b, []byte(begin)) {
			return text, found, b
		}
		n := bytes.Index(b, []byte(end))
		if newline := bytes.IndexByte(b, '\n'); n < 0 || newline >= 0 && newline < n {
			return text, found, b
		}
		text, found, b = string(b[len(begin):n]), true, b[n+len(end):]
	}
}

// Columns returns how wide the terminal is that shows this process's standard error, or 0 if there
// is none or it only prints.
func Columns() int {
	if Dumb() {
		return 0
	}
	return columnsOf(os.Stderr, os.Getenv(TerminalVariable), "/proc", os.Getppid())
}

// Dumb reports whether the terminal knows no control sequences.
func Dumb() bool { return os.Getenv("TERM") == "dumb" }

// Colours reports whether a file is a terminal that may show colours. Source: no-color.org.
func Colours(f *os.File) bool {
	return term.IsTerminal(int(f.Fd())) && !Dumb() && os.Getenv("NO_COLOR") == ""
}

// Usual is the columns of a terminal that does not say how many it has.
const Usual = 80

// columnsOf is Columns for a process whose parent is a process of proc.
func columnsOf(stderr *os.File, variable, proc string, parent int) int {
	if term.IsTerminal(int(stderr.Fd())) {
		return Width(stderr.Fd(), Usual)
	}
	st, err := stderr.Stat()
	if err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return 0
	}
	if n, err := strconv.Atoi(variable); err == nil && n > 0 {
		return n
	}
	// mpirun passes on the pipe's bytes as they are, unless it was told to mark lines.
	dir := filepath.Join(proc, strconv.Itoa(parent))
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return 0
	}
	switch strings.TrimSpace(string(comm)) {
	case "mpirun", "mpiexec", "orterun", "prterun":
	default:
		return 0
	}
	args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return 0
	}
	for arg := range strings.SplitSeq(string(args), "\x00") {
		if strings.HasPrefix(arg, "-") && (strings.Contains(arg, "output") || strings.Contains(arg, "xml")) {
			return 0
		}
	}
	far, err := os.OpenFile(filepath.Join(dir, "fd", "2"), os.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer far.Close()
	if !term.IsTerminal(int(far.Fd())) {
		return 0
	}
	return Width(far.Fd(), Usual)
}

// Width returns the columns of the terminal that a descriptor is of, or usual where it is of none
// or that does not say.
func Width(fd uintptr, usual int) int {
	if n, _, err := term.GetSize(int(fd)); err == nil && n > 0 {
		return n
	}
	return usual
}

// Screen prints lines above a live line. The zero value, with a writer, shows none.
type Screen struct {
	To io.Writer // the terminal, or what leads to it

	mu     sync.Mutex
	text   string
	beside bool // another process may show a live line
	closed bool
}

// Stderr is the screen of this process's standard error.
var Stderr = &Screen{To: os.Stderr}

// Show replaces the live line. It is cut to columns, and must not have control characters.
func (s *Screen) Show(text string, columns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text = fit(text, columns)
	if s.closed || text == s.text {
		return
	}
	s.text = text
	_, _ = io.WriteString(s.To, Live(text)) // where the terminal is gone nobody misses it
}

// fit cuts a text to the room of a line, less one column: in the last one some terminals
// begin a new line.
func fit(text string, columns int) string {
	r := []rune(text)
	if room := max(columns-1, 0); len(r) > room {
		r = r[:room]
	}
	for len(Live(string(r))) > MostLive {
		r = r[:len(r)-1]
	}
	return string(r)
}

// Beside says that another process may show a live line on the same terminal.
func (s *Screen) Beside() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beside = true
}

// Write prints whole lines to To, above the live line.
func (s *Screen) Write(b []byte) (int, error) { return s.WriteTo(s.To, b) }

// WriteTo is Write to another file, which the same terminal shows.
func (s *Screen) WriteTo(w io.Writer, b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == "" && !s.beside {
		return w.Write(b)
	}
	if w == s.To { // in one write
		n, err = w.Write(append([]byte(Live("")), b...))
		n = max(0, n-len(Live("")))
	} else {
		_, _ = io.WriteString(s.To, Live(""))
		n, err = w.Write(b)
	}
	if s.text != "" {
		_, _ = io.WriteString(s.To, Live(s.text))
	}
	return n, err
}

// Close removes the live line. There is none after that.
func (s *Screen) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text != "" {
		_, _ = io.WriteString(s.To, Live(""))
	}
	s.text, s.closed = "", true
}
