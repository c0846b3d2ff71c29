package peer

import (
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi/commtest"
	"lockstep/spmd/internal/shm"
)

// TestSharedDevice: kernels that wait for each other are not for ranks that share a device.
func TestSharedDevice(t *testing.T) {
	commtest.NeedsDouble(t)
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_DEVICES": "1"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			if _, err := Open(c, d, 0); err == nil || !strings.Contains(err.Error(), "ranks share a device") {
				t.Fatal(err)
			}
		})
}

// TestShare: every rank reads and writes the memory of the others.
func TestShare(t *testing.T) {
	onDevices(t, []int{1, 3}, nil, func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
		s := commtest.Must1(d.NewStream(0))(t)
		bytes := 64 * (c.Rank() + 1) // of another size each
		mem := commtest.Must1(d.Malloc(256 + bytes))(t)
		mine := unsafe.Add(mem, 256) // not where the allocation begins
		commtest.Must(t, s.Fill(mine, 4, uint64(c.Rank()+1), bytes/4))
		commtest.Must(t, s.Synchronize())
		w, err := Share(c, d, mine, bytes)
		commtest.Must(t, err)
		p, err := open(c, d, 0)
		commtest.Must(t, err)
		commtest.Must(t, p.Barrier(s))
		seen := commtest.Must1(d.MallocHost(4))(t)
		for r := range c.Size() {
			commtest.Must(t, s.Copy(seen, unsafe.Add(w.At(r), 64*r+60), 4)) // its last word
			commtest.Must(t, s.Synchronize())
			if got := *(*uint32)(seen); got != uint32(r+1) {
				t.Fatalf("rank %d sees %d of rank %d", c.Rank(), got, r)
			}
		}
		commtest.Must(t, p.Barrier(s))
		commtest.Must(t, s.Fill(w.At((c.Rank()+1)%c.Size()), 4, uint64(50+c.Rank()), 1))
		commtest.Must(t, p.Barrier(s))
		commtest.Must(t, s.Copy(seen, mine, 4))
		commtest.Must(t, s.Synchronize())
		if got, want := *(*uint32)(seen), uint32(50+(c.Rank()+c.Size()-1)%c.Size()); got != want {
			t.Fatalf("rank %d was written %d, want %d", c.Rank(), got, want)
		}
		for range 2 {
			commtest.Must(t, w.Close())
			commtest.Must(t, p.Close())
		}
		commtest.Must(t, d.Free(mem))

		// One rank has memory that cannot be shared: all learn it.
		if c.Size() > 1 && !commtest.OnGPU() {
			if c.Rank() == 1 {
				t.Setenv("FAKECUDA_SHARED", "0")
			}
			mem = commtest.Must1(d.Malloc(64))(t)
			if _, err := Share(c, d, mem, 64); err == nil || !strings.Contains(err.Error(), "cuIpcGetMemHandle") {
				t.Fatalf("rank %d: %v", c.Rank(), err)
			}
			commtest.Must(t, d.Free(mem))
		}
		commtest.Must(t, d.FreeHost(seen))
		commtest.Must(t, s.Close())
	})
}
