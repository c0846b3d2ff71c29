package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
)

var (
	rankVariable = regexp.MustCompile(`(^|\x00)(OMPI_COMM_WORLD_RANK|PMI_RANK)=[0-9]`)
	pmix         = regexp.MustCompile(`\bpmix\b`)
)

// A shell on each rank opens other files for standard output and error, and becomes the program.
// The launchers' own marks are worse: all put tags into long lines, Open MPI 4 loses bytes of short
// lines (iof_base_output.c), and Open MPI 5 mixes both streams. srun's --label marks whole lines.
const (
	// mpirun stops to pass standard input on if both are closed
	shellOpens = `r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$@" 3>&1 4>&2 >>%s 2>>%s`
	// On other hosts sed prefixes the lines. It outlives signals to the rank.
	shellPrefixes = shellMarks + `(trap "" HUP INT QUIT TERM USR1 USR2; exec sed -u "s/^/$r: /" <"$d/o") & exec ` +
		`3>"$d/o" 4>"$d/e"; rm -r "$d"; exec "$@" >&3 2>&4 3>&- 4>&-`
	shellClean = shellMarks + `exec 4>"$d/e"; rm -r "$d"; exec "$@" 2>&4 4>&-`
	shellMarks = `r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; d=$(mktemp -d) && mkfifo "$d/o" "$d/e" || exit 1; ` +
		`(trap "" HUP INT QUIT TERM USR1 USR2; exec sed -u "s/^/$r: /" <"$d/e" >&2) & `
)

// output reads the ranks' output if it does not go where the launcher's goes.
type output struct {
	writers []*os.File
	readers sync.WaitGroup
	opened  []*os.File
	spoke   atomic.Bool // a rank has written to its standard error, or the launcher anything but how the job ended
	// That, and errors within the launcher, for when nobody else says anything; valid after close.
	endings, errors []byte
	heardAll        bool   // what the launcher writes to its standard error comes through here
	folder          string // of the ranks' files, if they have any
	screen          *cli.Screen
	launcher.Listener
}

// Values of --logs, beside the name of a folder.
const (
	logsAuto   = "auto"
	logsPrefix = "prefix" // the rank before each line
	logsPipe   = "pipe"   // that on standard error only
	logsPlain  = "plain"  // as the launcher passes it on
)

// openOutput adds to l what brings the ranks' output to the place of logs, which is not auto.
func openOutput(l *Line, j job, logs string) (*output, error) {
	out := &output{screen: &cli.Screen{To: os.Stderr}}
	program := len(l.Groups) - 1
	insert := func(why string, words ...string) {
		l.Groups = append(l.Groups[:program:program], Group{words, why}, l.Groups[program])
	}
	slurm := l.Launcher == "slurm"
	if slurm && logs != logsPrefix {
		for i, g := range l.Groups {
			if len(g.Words) == 1 && g.Words[0] == labelWord {
				l.Groups = append(l.Groups[:i:i], l.Groups[i+1:]...)
				program--
				break
			}
		}
	}
	switch {
	case logs == "":
		return nil, usage("--logs: give auto, prefix, pipe, plain or the name of a folder")
	case logs == logsPlain, (logs == logsPrefix || logs == logsPipe) && slurm:
	case logs == logsPrefix && !j.here:
		insert("puts its rank before each line", "sh", "-c", shellPrefixes, "sh")
	case logs == logsPipe && !j.here:
		insert("puts its rank before each line of standard error", "sh", "-c", shellClean, "sh")
	case logs == logsPrefix, logs == logsPipe:
		base, err := out.pipes(j.ranks, logs == logsPipe)
		if err != nil {
			return nil, err
		}
		fd := func(i int) string { return fmt.Sprintf("/proc/%d/fd/$((%d+2*r))", os.Getpid(), base+i) }
		insert("gives each rank its own two pipes", "sh", "-c", fmt.Sprintf(shellOpens, fd(0), fd(1)), "sh")
	default:
		dir, err := filepath.Abs(logs)
		if err == nil {
			err = os.MkdirAll(dir, 0o777)
		}
		if err == nil {
			err = hasRoom(dir)
		}
		if err != nil {
			return nil, cli.Usage{Err: fmt.Errorf("--logs: %w", err)}
		}
		out.folder = dir
		if slurm {
			insert("a file for each rank, which what is there stays in", "--output="+dir+"/rank.%t.out",
				"--error="+dir+"/rank.%t.err", "--open-mode=append")
			break
		}
		q := quote([]string{dir + "/rank."})
		insert("opens a file for each rank", "sh", "-c", fmt.Sprintf(shellOpens, q+"$r.out", q+"$r.err"), "sh")
	}
	return out, nil
}

// hasRoom returns why nothing can be written to a folder.
func hasRoom(folder string) error {
	f, err := os.CreateTemp(folder, ".room")
	if err != nil {
		return err
	}
	_, err = f.WriteString("\n")
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// pipes opens two pipes for each rank and prints what comes out of them. The ranks open the write
// ends through /proc. Their numbers go up from base without a gap. If clean is true standard output
// gets no marks.
func (out *output) pipes(ranks int, clean bool) (base int, err error) {
	var ends []int
	defer func() {
		for _, fd := range ends {
			unix.Close(fd)
		}
		if err != nil {
			out.close()
			err = fmt.Errorf("%w: %d ranks need %d files: raise ulimit -n, or give --logs plain", err, ranks, 6*ranks)
		}
	}()
	live := term.IsTerminal(int(os.Stderr.Fd())) && !cli.Dumb()
	if live {
		if err := os.Setenv(cli.TerminalVariable, strconv.Itoa(cli.Width(os.Stderr.Fd(), cli.Usual))); err != nil {
			return 0, err
		}
	}
	for i := range 2 * ranks {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return 0, err
		}
		ends = append(ends, p[1])
		base = max(base, p[0]+1, p[1]+1)
		if err := unix.SetNonblock(p[0], true); err != nil { // for close's deadline
			return 0, err
		}
		r, to := os.NewFile(uintptr(p[0]), "rank"), io.Writer(&above{cli.Stdout, out})
		mark := strconv.Itoa(i/2) + ": "
		if i%2 == 1 {
			to = &noted{out.screen, out}
		} else if clean {
			mark = ""
		}
		out.opened = append(out.opened, r)
		var show func(text string)
		if live && i%2 == 1 {
			show = func(text string) { out.screen.Show(text, cli.Width(os.Stderr.Fd(), cli.Usual)) }
		}
		out.readers.Go(func() { prefix(to, r, mark, show) })
	}
	for i, end := range ends {
		fd, err := unix.FcntlInt(uintptr(end), unix.F_DUPFD_CLOEXEC, base+i)
		if err != nil {
			return 0, err
		}
		out.writers = append(out.writers, os.NewFile(uintptr(fd), "rank"))
		if fd != base+i {
			return 0, errors.New("file numbers are taken")
		}
	}
	return base, nil
}

// above is a writer that readers write to in turn, above the live line.
type above struct {
	io.Writer
	out *output
}

func (a *above) Write(b []byte) (int, error) { return a.out.screen.WriteTo(a.Writer, b) }

// noted is a writer of whole lines that notes that something was written, and what it says
// about a failure.
type noted struct {
	io.Writer
	out *output
}

func (n *noted) Write(b []byte) (int, error) {
	n.out.spoke.Store(true)
	n.out.Listen(b)
	return n.Writer.Write(b)
}

// relay returns a file whose content pass reads. Hydra's mpiexec sets O_NONBLOCK on its standard
// output and error for a while, for all that share them. Output of this process would then be lost
// if nobody reads yet.
func (out *output) relay(pass func(r io.Reader)) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out.opened, out.writers = append(out.opened, r), append(out.writers, w)
	out.readers.Go(func() {
		pass(r)
		_, _ = io.Copy(io.Discard, r) // if nobody takes it, the job goes on
	})
	return w, nil
}

// stdout and stderr are files for the launcher's own output. The latter keeps back the frames in
// which it tells how the job ended.
func (out *output) stdout() (*os.File, error) {
	return out.relay(func(r io.Reader) { _, _ = io.Copy(cli.Stdout, r) })
}

func (out *output) stderr() (*os.File, error) {
	return out.relay(func(r io.Reader) {
		out.endings, out.errors = launcher.SplitOutput(&noted{out.screen, out}, r)
	})
}

// close waits until all output has been printed. No rank runs any more.
func (out *output) close() {
	for _, w := range out.writers {
		w.Close()
	}
	// A process that has left the job on purpose may hold a pipe open. Nobody waits for its
	// later output.
	for _, r := range out.opened {
		_ = r.SetReadDeadline(time.Now().Add(5 * time.Second))
	}
	out.readers.Wait()
	out.screen.Close()
	for _, r := range out.opened {
		r.Close()
	}
}

// why adds the cause to the outcome of a failed job. It does not repeat a launcher's frame if a
// rank has said more, or the launcher has said it outside of its frames. If nobody has said
// anything, it says the status.
func (out *output) why(e outcome, err error, ranks int) outcome {
	own := launcher.ReadCause(out.endings, ranks)
	said := out.Cause()
	e.cause = said.Or(own)
	status, _ := err.(cli.Status)
	signalled := (own.Signalled() || status > 128) && e.asked == 0
	switch {
	case said != (launcher.Cause{}), out.spoke.Load() && !signalled:
	case len(out.endings) > 0, out.heardAll && e.asked == 0:
		e.unsaid = "launch: " + e.words(err, 0) + "\n"
	}
	return e
}

// maxLine is how many bytes a line has before it is cut in two.
const maxLine = 1 << 20

// prefix copies r to w by whole lines, with mark before each, until r ends. An unfinished line gets
// an end, unless mark is empty: then w has the bytes of r. Live lines (see package cli) go to
// live, if that is not nil.
func prefix(w io.Writer, r io.Reader, mark string, live func(text string)) {
	line := []byte(mark)
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		data := buf[:n]
		begun := line[len(mark):]
		if live != nil && len(begun) > 0 && begun[0] == '\r' && len(begun) < cli.MostLive { // perhaps a live line
			data = append(slices.Clone(begun), data...)
			line = line[:len(mark)]
		}
		var whole []byte
		for len(data) > 0 {
			if live != nil && len(line) == len(mark) {
				text, found, rest := cli.CutLive(data)
				if data = rest; found {
					live(text)
					continue
				}
			}
			i := bytes.IndexByte(data, '\n') + 1
			cut := i == 0
			if cut {
				i = len(data)
			}
			line = append(line, data[:i]...)
			data = data[i:]
			if cut && len(line) < maxLine {
				break
			}
			if cut && mark != "" {
				line = append(line, '\n')
			}
			whole = append(whole, line...)
			line = append(line[:0], mark...)
		}
		if err != nil && len(line) > len(mark) {
			whole = append(whole, line...)
			if mark != "" {
				whole = append(whole, '\n')
			}
		}
		if len(whole) > 0 {
			_, _ = w.Write(whole) // if nobody reads any more the ranks go on, as under mpirun itself
		}
		if err != nil {
			return
		}
	}
}
