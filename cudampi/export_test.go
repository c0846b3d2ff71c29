package cudampi

import (
	"testing"
	"unsafe"

	"lockstep/internal/elem"
)

const MaxElems = maxElems

// BroadcastRaw and SendRaw give MPI their operands as they are.

func (c *Comm) BroadcastRaw(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.broadcast(buf, n, t, root)
}

func (c *Comm) SendRaw(buf unsafe.Pointer, n int, t elem.Type, to int) error {
	return c.send(buf, n, t, to, tagUser)
}

// Lower makes every call of more than a few elements take the paths for counts beyond MPI's, until
// the test ends.
func Lower(t *testing.T) {
	old := []int{maxCount, maxHalf, maxSwap, sysLimitMessages(7)}
	maxCount, maxHalf, maxSwap = 7, 5, 3
	t.Cleanup(func() {
		maxCount, maxHalf, maxSwap = old[0], old[1], old[2]
		sysLimitMessages(old[3])
	})
}
