package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
)

// Failure is the error of a rank as the others learn of it.
type Failure struct {
	Rank int
	Code int64 // of a Coder; else 0
	Text string
}

// Coder is an error with a number that says to every rank of what kind it is. The number is not 0.
type Coder interface {
	error
	FailureCode() int64
}

// Error returns the text with the rank before it, unless the text names a rank itself.
func (f *Failure) Error() string {
	if namesRank.MatchString(f.Text) {
		return f.Text
	}
	return fmt.Sprintf("rank %d: %s", f.Rank, f.Text)
}

// Or returns a rank's error after a failure of the job: mine, its own, or f if it has none. It
// returns nil if f is nil.
func (f *Failure) Or(mine error) error {
	if f == nil || mine != nil {
		return mine
	}
	return f
}

// RankError is the error of a rank, for a caller who knows several ranks.
type RankError struct {
	Rank int
	Err  error
}

// Error returns the text of the rank's error, with its number.
func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

func (e *RankError) Unwrap() error { return e.Err }

var namesRank = regexp.MustCompile(`^rank [0-9]+: `)

// First returns the failure of the first rank that has one, the same on every rank, or nil.
func First(c Exchange, mine error) (*Failure, error) {
	s, err := Range(c, bid(c, mine))
	if err != nil {
		return nil, err
	}
	return relay(c, mine, int(s.Lo))
}

// bid returns a rank's bid in the search for the first that fails: the least wins.
func bid(c Exchange, mine error) int64 {
	if mine == nil {
		return int64(c.Size())
	}
	return int64(c.Rank())
}

// relay tells every rank the failure of rank first, or returns nil if first is no rank.
func relay(c Exchange, mine error, first int) (*Failure, error) {
	if first >= c.Size() {
		return nil, nil
	}
	f := &Failure{Rank: first}
	var said []byte
	if c.Rank() == first {
		if k := Coder(nil); errors.As(mine, &k) {
			f.Code = k.FailureCode()
		}
		said = append(binary.LittleEndian.AppendUint64(nil, uint64(f.Code)), mine.Error()...)
	}
	said, err := Broadcast(c, said, first)
	if err != nil {
		return nil, err
	}
	f.Code, f.Text = int64(binary.LittleEndian.Uint64(said)), string(said[8:])
	return f, nil
}
