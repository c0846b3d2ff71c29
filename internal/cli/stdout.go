package cli

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lockstep/internal/readable"
)

// Stdout is this process's standard output, for all that the framework prints.
var Stdout = &output{}

// output keeps the first error of a write. Nobody misses what a reader has left behind.
type output struct{ failed atomic.Pointer[error] }

func (o *output) Write(b []byte) (int, error) {
	n, err := os.Stdout.Write(b)
	if err != nil && !errors.Is(err, unix.EPIPE) {
		o.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Ended returns the status that a program of this name ends with. It is 1 instead of 0, after a
// line on standard error, if Stdout could not be written.
func Ended(name string, status int) int {
	err := Stdout.failed.Load()
	if err == nil || status != 0 {
		return status
	}
	fmt.Fprintf(os.Stderr, "%s: standard output: %s\n", name, readable.Line((*err).Error()))
	return 1
}
