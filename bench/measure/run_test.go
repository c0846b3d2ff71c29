package measure

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Lines come as they are, the last one also without a newline.
func TestFollow(t *testing.T) {
	var got []string
	err := Follow(func(errs bool, line string) error {
		if errs {
			line = "error " + line
		}
		got = append(got, line)
		return nil
	}, "sh", "-c", `echo one; echo; printf 'two\nthr'; printf 'ee'; printf four >&2`)
	slices.Sort(got)
	if want := []string{"", "error four", "one", "three", "two"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// An error names a program that fails, with its last words. An error of fn ends the program, and fn
// is not called again.
func TestFollowFails(t *testing.T) {
	err := Follow(func(bool, string) error { return nil }, "sh", "-c", "echo why >&2; exit 3")
	if err == nil || !strings.HasSuffix(err.Error(), "exit 3: exit status 3\nwhy\n") {
		t.Error(err)
	}
	enough, calls := errors.New("enough"), 0
	err = Follow(func(bool, string) error { calls++; return enough }, "sh", "-c", "while :; do echo more; done")
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}
