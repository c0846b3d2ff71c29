package mpirun

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
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

// report returns what a person needs of a failed job: the output of the ranks that failed, or of
// all if none could say so, and then mpirun's own words, which name a killed rank.
func report(out []string, own string) string {
	var ranks []int
	for r := range out {
		if hasLine(out[r], markFailed) {
			ranks = append(ranks, r)
		}
	}
	said := clean(own)
	if len(ranks) == 0 {
		if len(said) == 0 { // only mpirun knows why, so that nothing of it is noise
			said = slices.DeleteFunc(strings.Split(own, "\n"),
				func(line string) bool { return strings.TrimSpace(line) == "" })
		}
		for r := range out {
			ranks = append(ranks, r)
		}
	}
	var b strings.Builder
	for _, r := range ranks {
		for _, line := range ends(clean(out[r]), max(shownLines/len(ranks), 8)) {
			fmt.Fprintf(&b, "rank %d| %s\n", r, line)
		}
	}
	for _, line := range ends(said, shownLines/3) {
		fmt.Fprintf(&b, "mpirun| %s\n", line)
	}
	return b.String()
}

// noise matches lines that neither explain a failure nor come from the test: the frames of go test
// and of mpirun.
var noise = regexp.MustCompile(`^(=== (RUN|CONT|PAUSE|NAME) .*|lockstep-mpirun: .*|-{20,}|={20,}|\s*|` +
	`MPI_ABORT was invoked on .*|with errorcode .*|NOTE: invoking MPI_ABORT .*|You may or may not see .*|` +
	`exactly when Open MPI kills them\.|Primary job  ?terminated normally.*|a non-zero exit code.*|mpirun detected ` +
	`that one or more ` +
	`processes exited.*|thus causing the job to be terminated.*|the job to be terminated\. The first process.*)$`)

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
