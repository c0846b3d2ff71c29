package testkit

import (
	"os"
	"strings"
	"testing"
)

// variable is "all" if all cases are wanted, and "quick" in make test.
const variable = "LOCKSTEP_TESTS"

// AllCases reports whether all cases are wanted.
func AllCases() bool { return os.Getenv(variable) == "all" }

// Quick reports whether this is make test, which starts few processes. By go test, a test has all
// the processes that it wants.
func Quick() bool { return os.Getenv(variable) == "quick" }

// Only skips a test that only make test-all has. what describes it in a few words.
func Only(t testing.TB, what string) {
	t.Helper()
	if !AllCases() {
		More(t, 1, what)
		t.Skip("for make test-all")
	}
}

// Some returns the cases for which keep returns true, or all of them if all are wanted. what
// describes the cases in a few words.
func Some[T any](t testing.TB, what string, cases []T, keep func(c T) bool) []T {
	t.Helper()
	if AllCases() {
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

// Few returns how often something random is tried: few times, or many if all cases are wanted.
func Few(t testing.TB, what string, few, many int) int {
	t.Helper()
	if AllCases() {
		return many
	}
	More(t, many-few, what)
	return few
}

// More says how many cases a test leaves out by itself, unless AllCases. The suite shows these
// lines at its end.
func More(t testing.TB, n int, what string) {
	t.Helper()
	if AllCases() {
		return
	}
	t.Logf("make test-all has more: %d %s", n, what)
}

// Must fails the test with an error.
func Must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // costs more than a collective that benchmarks measure
		t.Fatal(err)
	}
}

// Refused fails the test unless err is an error that says each of want.
func Refused(t testing.TB, err error, want ...string) {
	t.Helper()
	for _, text := range want {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q in it", err, text)
		}
	}
}
