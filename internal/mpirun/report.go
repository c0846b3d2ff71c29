package mpirun

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockstep/internal/launcher"
	"lockstep/internal/readable"
)

// These limit the output of a failing job.
const (
	shownLines = 60
	shownBytes = 1 << 20 // that are read of each end of a rank's output
)

// readEnds returns the contents of a file, or its first n and last n bytes if it has more than 2n.
func readEnds(file string, n int64) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	left := st.Size() - 2*n
	if left <= 0 {
		b, err := io.ReadAll(io.LimitReader(f, 2*n))
		return string(b), err
	}
	b := make([]byte, 2*n)
	if _, err := f.ReadAt(b[:n], 0); err != nil {
		return "", err
	}
	if _, err := f.ReadAt(b[n:], n+left); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s\n... %d bytes left out ...\n%s", b[:n], left, b[n:]), nil
}

func hasLine(out, line string) bool { return strings.Contains("\n"+out, "\n"+line+"\n") }

// report returns what a person needs of a failed job: the output of the ranks that failed or died,
// or of all if none is known, and then what mpirun adds. Words that several ranks say alike stand
// there once.
//
// A rank that only died left no mark. It may be why the others failed.
func report(out []string, own string) string {
	var rest strings.Builder
	frames, errors := launcher.SplitOutput(&rest, strings.NewReader(own))
	cause := launcher.ReadCause(frames, len(out))
	var ranks []int
	silent := false // the rank that mpirun names has not said why
	for r := range out {
		failed, named := hasLine(out[r], markFailed) || crashed(out[r]), cause.Rank == strconv.Itoa(r)
		silent = silent || named && !failed
		if failed || named {
			ranks = append(ranks, r)
		}
	}
	told := len(ranks) > 0
	if !told {
		for r := range out {
			ranks = append(ranks, r)
		}
	}
	var b strings.Builder
	speakers := alike(out, ranks)
	for _, those := range speakers {
		for _, line := range ends(clean(out[those[0]]), max(shownLines/len(speakers), 8)) {
			fmt.Fprintf(&b, "%s| %s\n", readable.Ranks(those), line)
		}
	}
	said := clean(rest.String())
	if (silent || !told) && cause.What != "" {
		said = append(said, cause.String())
	}
	if !told {
		said = append(said, clean(string(errors))...)
	}
	if !told && len(said) == 0 { // only mpirun knows why, so that nothing of it is noise
		said = slices.DeleteFunc(strings.Split(own, "\n"),
			func(line string) bool { return strings.TrimSpace(line) == "" })
	}
	for _, line := range ends(said, shownLines/3) {
		fmt.Fprintf(&b, "mpirun| %s\n", line)
	}
	return b.String()
}

// crashed reports whether a process has said that it dies: a Go panic, or an end by spmd.Main.
func crashed(out string) bool {
	for line := range strings.Lines(out) {
		if _, ok := launcher.Hear([]byte(line)); ok {
			return true
		}
	}
	return false
}

// differs matches what differs between ranks that do the same.
var differs = regexp.MustCompile(`0x[0-9a-f]+|goroutine \d+ |\(\d+\.\d\ds\)`)

// alike returns the ranks in groups that have said the same, in the order of their first.
func alike(out []string, ranks []int) (groups [][]int) {
	first := map[string]int{}
	for _, r := range ranks {
		said := differs.ReplaceAllString(strings.Join(clean(out[r]), "\n"), "")
		if i, ok := first[said]; ok {
			groups[i] = append(groups[i], r)
			continue
		}
		first[said] = len(groups)
		groups = append(groups, []int{r})
	}
	return groups
}

// noise matches lines of go test and of the harness, and rules of frames
// of which a part is missing.
var noise = regexp.MustCompile(`^(=== (RUN|CONT|PAUSE|NAME) .*|lockstep-mpirun: .*|-{20,}|={20,}|\s*)$`)

// frame matches the first line of a stack frame of the harness. The second begins with a tab.
var frame = regexp.MustCompile(
	`^(testing\.|created by testing\.|main\.main\(|runtime/debug\.Stack|lockstep/internal/mpirun\.(child|` +
		`each|Run|RunAlone|serve|serveOne|Main)\b)`)

// clean returns the lines of out that are worth showing.
func clean(out string) []string {
	var lines []string
	skip := false
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\r\n")
		if skip = frame.MatchString(line) || skip && strings.HasPrefix(line, "\t"); !skip && !noise.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// ends keeps the first and the last of more than n lines: a crash explains itself at its head, a
// test at its end.
func ends(lines []string, n int) []string {
	if len(lines) <= n {
		return lines
	}
	head := n / 2
	tail := n - 1 - head
	cut := fmt.Sprintf("... %d lines left out ...", len(lines)-head-tail)
	return append(append(lines[:head:head], cut), lines[len(lines)-tail:]...)
}
