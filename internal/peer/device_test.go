package peer

import (
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/devtest"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
)

// TestDevicePaths is about which path is taken, and why.
func TestDevicePaths(t *testing.T) {
	devtest.NeedsDouble(t)
	devtest.OnDevices(t, []int{2}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		devtest.Small(t)
		yes, no := &cudampi.Aware{Yes: true, Reason: "told so"}, &cudampi.Aware{Yes: false, Reason: "told not"}
		for _, tc := range []struct {
			path         cudampi.Path
			aware        *cudampi.Aware
			peers        string
			want         cudampi.Path
			reason, fail string
		}{
			{cudampi.Auto, yes, "1", cudampi.Peer, "the devices reach each other", ""},
			{cudampi.Auto, yes, "0", cudampi.AwareMPI, "told so", ""},
			{cudampi.Auto, no, "0", cudampi.Staged, "told not; no peer memory: ", ""},
			{cudampi.Auto, &cudampi.Aware{Yes: c.Rank() == 0, Reason: "who knows"}, "0", cudampi.Staged, "who knows", ""}, // the ranks differ
			{cudampi.AwareMPI, no, "1", cudampi.AwareMPI, "told not", ""},
			{cudampi.Staged, yes, "1", cudampi.Staged, "told so", ""},
			{cudampi.Staged, nil, "1", cudampi.Staged, "LOCKSTEP_MPI_CUDA=no", ""},
			{cudampi.Peer, yes, "0", 0, "", "has no peer access to GPU"},
			{9, yes, "1", 0, "", "path 9"},
		} {
			t.Setenv("FAKECUDA_PEERS", tc.peers)
			k, _, err := open(c, d, cudampi.DeviceConfig{Path: tc.path, Aware: tc.aware})
			if tc.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fail) {
					t.Fatalf("%v: %v, want %q", tc.path, err, tc.fail)
				}
				continue
			}
			commtest.Must(t, err)
			if k.Path() != tc.want || !strings.Contains(k.Reason(), tc.reason) {
				t.Fatalf("%v: %v because %q, want %v, %q", tc.path, k.Path(), k.Reason(), tc.want, tc.reason)
			}
			devtest.Reductions[float32](t, on(t, "auto", c, d, k), 200, elem.Sum)
			commtest.Must(t, k.Close())
		}
		// Without memory to share, and without pinned memory.
		t.Setenv("FAKECUDA_FAIL", "cuMemHostRegister_v2=1")
		k, _, err := open(c, d, cudampi.DeviceConfig{Path: cudampi.Staged})
		commtest.Must(t, err)
		if !strings.Contains(k.Reason(), "through MPI on the host, since ") || !strings.Contains(k.Reason(), "cuMemHostRegister") {
			t.Fatalf("reason %q", k.Reason())
		}
		commtest.Must(t, k.Close())
		if c.Rank() == 1 {
			t.Setenv("FAKECUDA_FAIL", "cuMemHostAlloc=2")
		} else {
			t.Setenv("FAKECUDA_FAIL", "")
		}
		if _, _, err = open(c, d, cudampi.DeviceConfig{}); err == nil || !strings.Contains(err.Error(), "cuMemHostAlloc") {
			t.Fatalf("rank %d: %v", c.Rank(), err)
		}
		t.Setenv("FAKECUDA_FAIL", "")
	})
}

// TestShare: every rank reads and writes the memory of the others.
func TestShare(t *testing.T) {
	devtest.OnDevices(t, []int{1, 3}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		s := devtest.Must1(d.NewStream(0))(t)
		bytes := 64 * (c.Rank() + 1) // of another size each
		mem := devtest.Must1(d.Malloc(256 + bytes))(t)
		mine := unsafe.Add(mem, 256) // not where the allocation begins
		commtest.Must(t, s.Fill(mine, 4, uint64(c.Rank()+1), bytes/4))
		commtest.Must(t, s.Synchronize())
		w, err := Share(c, d, mine, bytes)
		commtest.Must(t, err)
		p, err := Open(c, d, 0)
		commtest.Must(t, err)
		commtest.Must(t, p.Barrier(s))
		seen := devtest.Must1(d.MallocHost(4))(t)
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
		if c.Size() > 1 && !devtest.OnGPU() {
			if c.Rank() == 1 {
				t.Setenv("FAKECUDA_SHARED", "0")
			}
			mem = devtest.Must1(d.Malloc(64))(t)
			if _, err := Share(c, d, mem, 64); err == nil || !strings.Contains(err.Error(), "cuIpcGetMemHandle") {
				t.Fatalf("rank %d: %v", c.Rank(), err)
			}
			commtest.Must(t, d.Free(mem))
		}
		commtest.Must(t, d.FreeHost(seen))
		commtest.Must(t, s.Close())
	})
}
