package cli

import "strconv"

// Bad input, as opposed to an attempt that failed (status 1).
const badUsage = 2

// Status ends the command with this status and prints nothing: all has been said.
type Status int

func (s Status) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// Usage marks bad input: its one line is printed, and the status is 2.
type Usage struct{ Err error }

func (u Usage) Error() string { return u.Err.Error() }

func (u Usage) Unwrap() error { return u.Err }

// ExitStatus returns the status for an error of a command of launch, and whether to print it.
func ExitStatus(err error) (status int, say bool) {
	switch e := err.(type) {
	case nil:
		return 0, false
	case Status:
		return int(e), false
	case Usage:
		return badUsage, true
	default:
		return 1, true
	}
}
