package watch

import (
	"bytes"
	"testing"
	"time"
)

// Accounts of living ranks come whole, however long, also after the cause of the job is known.
func TestAccounts(t *testing.T) {
	const size, mute, dead = 5, 3, 4
	j := newJob(t, size)
	hang := make(chan struct{})
	defer close(hang)
	of := func(rank int) []byte {
		if rank == 1 {
			return nil
		}
		return bytes.Repeat([]byte{byte(rank), 0, 0xff}, rank*MaxState/2+1)
	}
	j.change = func(c *Config) {
		rank := c.Me.Rank
		c.Account = func() []byte {
			if rank == mute {
				<-hang
			}
			return of(rank)
		}
	}
	j.join(upTo(size)...)
	for rank, got := range j.nets[2].Accounts(patience) {
		if got != nil {
			t.Errorf("rank 2 is no hub, and got %d bytes of rank %d", len(got), rank)
		}
	}
	j.nets[dead].Close()
	for rank := range dead {
		j.end(rank)
	}
	for _, from := range []int{0, 1} {
		for rank, got := range j.nets[from].Accounts(time.Second) {
			want := of(rank)
			if rank == mute || rank == dead {
				want = nil
			}
			if !bytes.Equal(got, want) {
				t.Errorf("from rank %d: of rank %d %d bytes, want %d", from, rank, len(got), len(want))
			}
		}
	}
}
