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

// Error is the text with the rank before it, unless it names one itself: what a rank has from another.
func (f *Failure) Error() string {
	if namesRank.MatchString(f.Text) {
		return f.Text
	}
	return fmt.Sprintf("rank %d: %s", f.Rank, f.Text)
}

// Or returns what a rank has to say of a failure of the job: mine, its own, and where it has none f; nil where f is.
func (f *Failure) Or(mine error) error {
	if f == nil || mine != nil {
		return mine
	}
	return f
}

// RankError is the error of a rank, for who knows of several ranks.
type RankError struct {
	Rank int
	Err  error
}

// Error is the text of the rank's error, with its number.
func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

// Unwrap returns the rank's error.
func (e *RankError) Unwrap() error { return e.Err }

var namesRank = regexp.MustCompile(`^rank [0-9]+: `)

// First returns the failure of the first rank that has one, the same on every rank; nil where no rank has.
func First(c Comm, mine error) (*Failure, error) {
	s, err := Range(c, bid(c, mine))
	if err != nil {
		return nil, err
	}
	return relay(c, mine, int(s.Lo))
}

// bid is what a rank brings to find the first that fails: the least wins.
func bid(c Comm, mine error) int64 {
	if mine == nil {
		return int64(c.Size())
	}
	return int64(c.Rank())
}

// relay tells every rank the failure of rank first; nil where that is no rank.
func relay(c Comm, mine error, first int) (*Failure, error) {
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
