package commtest

import (
	"fmt"
	"runtime"
	"testing"
)

// Case is a call that says what is wrong with its result.
type Case struct {
	Name string
	Call func() error
}

// AtDepths makes calls on 600 stacks, each a few words deeper than the one before. So every call
// meets a stack that is full when the call begins, or when something on its way into C begins. That
// stack moves, and with it the variables that the call was given.
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

// Is returns an error unless got is want.
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
