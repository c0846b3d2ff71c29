package testkit

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal. The holder of the terminal sees what is written to Far.
type Terminal struct {
	Far *os.File // the side of programs

	near *os.File
	done chan struct{}
	seen written
}

// written is the output of programs so far.
type written struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// OpenTerminal makes a terminal of so many columns, which is closed when the test ends. It skips
// the test if there can be no terminal.
func OpenTerminal(t *testing.T, columns int) *Terminal {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { near.Close() })
	n, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(near.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: 50})
	}
	if err != nil {
		t.Fatal(err)
	}
	far, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	p := &Terminal{Far: far, near: near, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_, _ = io.Copy(&p.seen, near) // an error once no program has it open
	}()
	return p
}

// Type types text, such as "\x03" for Ctrl-C.
func (p *Terminal) Type(t *testing.T, text string) {
	t.Helper()
	if _, err := p.near.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func (p *Terminal) Modes(t *testing.T) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(p.Far.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// Seen returns what has been written to it so far.
func (p *Terminal) Seen() string { return p.seen.String() }

// Close closes the side of programs, and returns everything that was written to it. No program may
// have it open.
func (p *Terminal) Close() string {
	p.Far.Close()
	<-p.done
	return p.seen.String()
}

// ScreenLines returns what a terminal shows of written text: a carriage return goes to the
// beginning of the line, and ESC [ K clears the rest.
func ScreenLines(written string) []string {
	var lines []string
	var line []rune
	at := 0
	in := []rune(written)
	for i := 0; i < len(in); i++ {
		switch {
		case in[i] == '\n':
			lines = append(lines, strings.TrimRight(string(line), " "))
			line, at = nil, 0
		case in[i] == '\r':
			at = 0
		case strings.HasPrefix(string(in[i:min(i+3, len(in))]), "\x1b[K"):
			line = line[:min(at, len(line))]
			i += 2
		default:
			for len(line) <= at {
				line = append(line, ' ')
			}
			line[at] = in[i]
			at++
		}
	}
	return append(lines, strings.TrimRight(string(line), " "))
}
