package process

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestState(t *testing.T) {
	for stat, want := range map[string]string{
		"1 (go) S 0":            "S (sleeping)",
		"1 (a) T (b) R) T 1 2":  "T (stopped)",
		"":                      "unknown",
		"1 (x)":                 "unknown",
		"1 (x) \x1b":            `'\x1b'`,
		"2 (k) Z 1":             "Z (dead, not yet reaped)",
		"3 (\n) t 1 1 1 1 1 1 ": "t (stopped by a debugger)",
	} {
		if got := stateOf([]byte(stat)); got != want {
			t.Errorf("%q: %q, want %q", stat, got, want)
		}
	}
	if s := State(os.Getpid()); !strings.Contains(s, "(") {
		t.Errorf("%q", s)
	}
	if s := State(1 << 30); s != "no such process" {
		t.Errorf("%q", s)
	}
}

const maxTicks = math.MaxInt64 / 10_000_000 // of 10 ms in a Duration

func stat(name, ticks string) string {
	fields := slices.Repeat([]string{"0"}, 30)
	fields[0], fields[19] = "S", ticks
	return fmt.Sprintf("12 (%s) %s\n", name, strings.Join(fields, " "))
}

// FuzzStartTime reads lines that the kernel does not write, and those that it does, with any name.
func FuzzStartTime(f *testing.F) {
	f.Add(stat("train", "4242"), "x", uint64(4242))
	f.Add(stat("a) S 1 (b", "1"), ") (", uint64(math.MaxInt64))
	f.Add("12 (short) S 1", "", uint64(maxTicks))
	f.Add("", "\n", uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, line, name string, ticks uint64) {
		if at, ok := StartTime(line); at < 0 || !ok && at != 0 {
			t.Errorf("%q: %v, %v", line, at, ok)
		}
		// The line has any name, and numbers that a Duration can hold.
		want, fits := time.Duration(ticks)*10*time.Millisecond, ticks <= maxTicks
		if at, ok := StartTime(stat(name, strconv.FormatUint(ticks, 10))); ok != fits || ok && at != want {
			t.Errorf("name %q, %d ticks: %v, %v, want %v, %v", name, ticks, at, ok, want, fits)
		}
	})
}

// This process's own age is known.
func TestProcessAge(t *testing.T) {
	if age := Age(); age <= 0 || age > 24*time.Hour {
		t.Errorf("age %v", age)
	}
}
