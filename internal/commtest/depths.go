package commtest

import (
	"fmt"
	"runtime"
	"testing"
)

// Case is a call, which says what is wrong with its result.
type Case struct {
	Name string
	Call func() error
}

// AtDepths makes calls on 600 stacks, each deeper than the one before by a few words. So every call
// has a stack that is full when it, or what it calls on the way into C, begins: that one moves, and
// with it the variables that the call has been given.
func AtDepths(t *testing.T, cases []Case) {
	t.Helper()
	const depths = 600
	for depth := range depths {
		failed := make(chan error, 1)
		go descend(depth, func() {
			var err error
			defer func() { failed <- err }()
			for _, c := range cases {
				if err = c.Call(); err != nil {
					err = fmt.Errorf("%s at depth %d: %w", c.Name, depth, err)
					return
				}
			}
		})
		Must(t, <-failed)
	}
}

// Is is an error where got is not want.
func Is[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

func descend(n int, fn func()) {
	var words [4]int
	if n == 0 {
		fn()
	} else {
		descend(n-1, fn)
	}
	runtime.KeepAlive(&words)
}
