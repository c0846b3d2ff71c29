// Package nearest says which flag was probably meant by one that does not exist.
package nearest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Flag returns an error of fs.Parse, with the flag that an unknown one was probably meant for, where one is near.
func Flag(fs *pflag.FlagSet, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		if near := nearest(fs, unknown.GetSpecifiedName()); near != "" {
			return fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	return err
}

// nearest returns the flag that a name was probably meant for, "" where none is near: it
// differs in at most two letters and in half of them, or begins as the name does.
func nearest(fs *pflag.FlagSet, name string) string {
	best, least := "", 3
	fs.VisitAll(func(f *pflag.Flag) {
		d := distance(name, f.Name)
		if len(name) >= 3 && strings.HasPrefix(f.Name, name) {
			d = min(d, 2)
		}
		if d < least && 2*d <= len(f.Name) {
			best, least = f.Name, d
		}
	})
	return best
}

// distance is how many letters are to be inserted, removed or replaced to make b of a.
// Source: Wagner, Fischer: The string-to-string correction problem (JACM 1974).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
