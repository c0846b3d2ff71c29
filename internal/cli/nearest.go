package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Advise returns an error of fs.Parse with advice. For an unknown flag it is the flag that was
// probably meant, or how to see all. For a flag without its value it is what that may be.
func Advise(fs *pflag.FlagSet, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		if near := nearest(fs, unknown.GetSpecifiedName()); near != "" {
			return fmt.Errorf("%w; did you mean --%s?", err, near)
		}
		return fmt.Errorf("%w: --help shows all", err)
	}
	if bare := (*pflag.ValueRequiredError)(nil); errors.As(err, &bare) {
		_, usage := pflag.UnquoteUsage(bare.GetFlag())
		return fmt.Errorf("%w (%s)", err, usage)
	}
	return err
}

// nearest returns the flag that a name was probably meant for, or "".
func nearest(fs *pflag.FlagSet, name string) string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return Nearest(names, name)
}

// Nearest returns the one of some names that a name was probably meant for, or "". It differs in at
// most two letters and in at most half of them, or begins as the name does.
func Nearest(names []string, name string) string {
	best, least := "", 3
	for _, n := range names {
		d := distance(name, n)
		if len(name) >= 3 && strings.HasPrefix(n, name) {
			d = min(d, 2)
		}
		if d < least && 2*d <= len(n) {
			best, least = n, d
		}
	}
	return best
}

// distance returns how many letters must be inserted, removed, replaced or exchanged with the next
// to turn a into b. Source: Boytsov: Indexing methods for approximate dictionary searching (JEA
// 2011), optimal string alignment.
func distance(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			replaced := row[j]
			if a[i] != b[j] {
				replaced++
			}
			next[j+1] = min(replaced, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
