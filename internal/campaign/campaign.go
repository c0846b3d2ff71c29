// Package campaign divides the tests. Those that every change waits for, make test, have one case
// of every kind. make test-all has all cases: each fault, each division of a model, each type by
// each size by each way. LOCKSTEP_TESTS=all asks for these.
package campaign

import (
	"os"
	"testing"
)

// variable is "all" where all cases are asked for.
const variable = "LOCKSTEP_TESTS"

// All says whether all cases are asked for.
func All() bool { return os.Getenv(variable) == "all" }

// Only skips a test that is for make test-all alone. what says in a few words what it is.
func Only(t testing.TB, what string) {
	t.Helper()
	if !All() {
		More(t, 1, what)
		t.Skip("for make test-all")
	}
}

// Some returns those cases that keep says, and all of them where all are asked for. what
// are the cases, in a few words.
func Some[T any](t testing.TB, what string, cases []T, keep func(c T) bool) []T {
	t.Helper()
	if All() {
		return cases
	}
	var some []T
	for _, c := range cases {
		if keep(c) {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		t.Fatalf("no case of %s is kept", what)
	}
	if left := len(cases) - len(some); left > 0 {
		More(t, left, what)
	}
	return some
}

// Few is how many times something random is tried: few, or many where all cases are asked for.
func Few(t testing.TB, what string, few, many int) int {
	t.Helper()
	if All() {
		return many
	}
	More(t, many-few, what)
	return few
}

// More says of cases that a test leaves out by itself how many there are, unless All. The suite
// shows these lines at its end.
func More(t testing.TB, n int, what string) {
	t.Helper()
	if All() {
		return
	}
	t.Logf("make test-all has more: %d %s", n, what)
}
