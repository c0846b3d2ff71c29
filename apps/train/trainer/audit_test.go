package trainer

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// One bit of one tensor differs on one rank: every rank names the tensor and the rank.
func TestAudit(t *testing.T) {
	spmdtest.Run(t, []int{2, 3}, func(t *testing.T, w *spmd.World) {
		tr := start(t, w, w.Comm(), testConfig(3), wordTokens(4000))
		step(t, tr, 0)
		spmdtest.Must(t, tr.Audit(1))
		last := w.Size() - 1
		for _, a := range tr.replicas() {
			for _, p := range []layout.Param{
				tr.State.Params[0], tr.State.Params[5], tr.State.Params[len(tr.State.Params)-1],
			} {
				tensor := a.Slice(p.Off, p.Off+p.Len)
				was := tensor.At(p.Len / 2)
				if w.Rank() == last {
					traintest.Flip(tensor, p.Len/2, 0)
				}
				err := tr.Audit(7)
				for _, want := range []string{a.Prefix + p.Name + " after 7 steps", fmt.Sprintf("rank %d has", last)} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want %q in it", err, want)
					}
				}
				tensor.Set(p.Len/2, was)
			}
		}
		if err := tr.Audit(1); err != nil {
			t.Error(err)
		}
		spmdtest.Must(t, tr.Close())
	})
}
