package testkit

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// CallLog is the file in which the doubles of a process write about calls, and how many of its
// lines were read.
type CallLog struct {
	File string
	Read int
}

// Open makes the doubles of this process write to a file from now on.
func (l *CallLog) Open(file string) {
	l.File = file
	for _, name := range []string{"FAKECUDA_LOG", "FAKENCCL_LOG", "FAKECUBLAS_LOG"} {
		os.Setenv(name, file)
	}
}

// New returns the calls since the last New whose names begin with one of the prefixes,
// or all calls.
func (l *CallLog) New(t testing.TB, prefixes ...string) []string {
	t.Helper()
	text, err := os.ReadFile(l.File)
	if err != nil {
		t.Fatal(err)
	}
	lines := LogLines(string(text))
	var list []string
	for _, line := range lines[l.Read:] {
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes,
			func(p string) bool { return strings.HasPrefix(line, p) }) {
			list = append(list, line)
		}
	}
	l.Read = len(lines)
	return list
}

// LogLines returns the lines of a log, without the numbers of threads.
func LogLines(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if thread, call, _ := strings.Cut(line, " "); thread != "" && thread[0] >= '0' && thread[0] <= '9' {
			lines[i] = call
		}
	}
	return lines
}

// LogValue returns the value of a key in a line of a log, or "".
func LogValue(line, key string) string {
	_, rest, _ := strings.Cut(line, " "+key+"=")
	v, _, _ := strings.Cut(rest, " ")
	return v
}

// Injected makes the driver's double return statuses, such as "cuLaunchKernel=701", while fn runs.
func Injected(what string, fn func()) {
	os.Setenv("FAKECUDA_FAIL", what)
	defer os.Unsetenv("FAKECUDA_FAIL")
	fn()
}
