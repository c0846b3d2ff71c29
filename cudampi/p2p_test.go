package cudampi_test

import (
	"testing"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
)

func TestMessages(t *testing.T) {
	commtest.TypesLeft(t, len(counts), "messages by MPI")
	onRanks(t, counts, func(t *testing.T, c *cudampi.Comm) {
		var g cudampi.P2P
		for _, inParts := range []bool{false, true} {
			if inParts {
				cudampi.Lower(t)
			}
			for _, n := range append(commtest.Lengths, 7, 49, 1022, 20000) { // 20000 is no eager message
				commtest.EveryMessage(t, c, &g, n)
			}
		}
	})
}

func TestGroupOverComms(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		commtest.GroupOverComms(t, c, d, &cudampi.P2P{})
		commtest.Must(t, d.Close())
	})
}

var classes = commtest.Classes{Buffer: cudampi.ErrBuffer, Count: cudampi.ErrCount, Truncate: cudampi.ErrTruncate}

func TestWrongLength(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		commtest.WrongLength(t, c, &cudampi.P2P{}, classes)
		cudampi.Lower(t)
		commtest.WrongLength(t, c, &cudampi.P2P{}, classes)
	})
}

func TestWrongType(t *testing.T) {
	onRanks(t, []int{2, 3}, func(t *testing.T, c *cudampi.Comm) {
		commtest.WrongType(t, c, &cudampi.P2P{})
		cudampi.Lower(t)
		commtest.WrongType(t, c, &cudampi.P2P{})
	})
}

func TestGroupIsReusable(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		commtest.GroupIsReusable(t, c, &cudampi.P2P{}, classes)
	})
}

func TestNoAllocation(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *cudampi.Comm) { commtest.NoAllocation(t, c, &cudampi.P2P{}) })
}

func BenchmarkLatency(b *testing.B) {
	c, err := cudampi.Start()
	commtest.Must(b, err)
	commtest.Latencies(b, c, &cudampi.P2P{})
}
