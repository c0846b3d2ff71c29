package text

import (
	"errors"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// An error of one rank ends all ranks, with its text.
func TestGatherSpreadsErrors(t *testing.T) {
	disk := errors.New("disk full")
	for r, err := range together(3, func(g Group) error {
		var mine error
		if g.Rank == 1 {
			mine = disk
		}
		_, err := g.Gather(nil, mine)
		return err
	}) {
		if r == 1 && !errors.Is(err, disk) || err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("rank %d: error %v", r, err)
		}
	}
}

// Byte strings of any lengths reach every rank, and one rank's error reaches all.
func TestCommGroup(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		g := Among(w, w.Comm())
		all, err := g.Gather([]byte(strings.Repeat("x", 5*w.Rank())), nil)
		spmdtest.Must(t, err)
		for r := range w.Size() {
			if len(all[r]) != 5*r {
				t.Errorf("rank %d gave %d bytes, want %d", r, len(all[r]), 5*r)
			}
		}
		var mine error
		if w.Rank() == w.Size()-1 {
			mine = BadInput("no such thing")
		}
		if _, err := g.Gather(nil, mine); err == nil || err.Error() != "no such thing" {
			t.Errorf("error %v, want the last rank's", err)
		}
	})
}
