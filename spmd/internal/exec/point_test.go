package exec

import (
	"errors"
	"testing"
)

// order is a queue that has got to a command, and may have failed at one.
type order struct {
	at, failedAt uint64
	err          error
}

func (o order) Reached(seq uint64) bool { return o.at >= seq }
func (o order) Wait(uint64)             {}

func (o order) Failure(seq uint64) error {
	if o.err != nil && seq >= o.failedAt {
		return o.err
	}
	return nil
}

// A point behind a failed command is decided before the queue has got there.
func TestPassed(t *testing.T) {
	failed := errors.New("failed")
	for _, tc := range []struct {
		name string
		p    Point
		done bool
		err  error
	}{
		{"nothing", Point{}, true, nil},
		{"reached", Point{order{at: 3}, 3}, true, nil},
		{"not reached", Point{order{at: 2}, 3}, false, nil},
		{"failed before", Point{order{1, 2, failed}, 3}, true, failed},
		{"fails behind it", Point{order{1, 4, failed}, 3}, false, nil},
		{"reached before the failure", Point{order{5, 4, failed}, 3}, true, nil},
	} {
		if done, err := tc.p.Passed(); done != tc.done || !errors.Is(err, tc.err) || err != nil && tc.err == nil {
			t.Errorf("%s: %v, %v", tc.name, done, err)
		}
	}
}
