package cudampi

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

// TestDeviceMismatch: ranks that bring different things learn it, all of them, and the DeviceComm works on.
func TestDeviceMismatch(t *testing.T) {
	onDevices(t, []int{3}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		everyWay(t, c, d, func(t *testing.T, w way) {
			if w.path == Peer {
				return // as with NCCL, there is nobody who could compare
			}
			src, dst := device[float32](t, w, 6000), device[float32](t, w, 6000)
			odd := c.rank / 2 // 1 on the last rank
			send := []int{700, 700, 700}
			recv := []int{700, 700, 700}
			if c.rank == 1 {
				recv[2]++
			}
			for i, call := range []func() error{
				func() error {
					return w.AllReduce(At(w.s), dst.at(0), src.at(0), 1000+odd, elem.Float32, elem.Sum)
				},
				func() error {
					return w.AllReduce(At(w.s), dst.at(0), src.at(0), 1000, elem.Float32, elem.Op(odd))
				},
				func() error {
					return w.AllReduce(At(w.s), dst.at(0), src.at(0), 3, elem.Float32-elem.Type(5*odd), elem.Sum)
				},
				func() error { // as far apart as what is staged and what is not
					return w.AllReduce(At(w.s), dst.at(0), src.at(0), 3+3000*odd, elem.Float32, elem.Sum)
				},
				func() error { return w.Broadcast(At(w.s), dst.at(0), 500, elem.Float32, odd) },
				func() error {
					return w.AllGatherV(At(w.s), dst.at(0), src.at(0), []int{600 + odd, 601 - odd, 9}, elem.Float32)
				},
			} {
				err := call()
				var e *ccall.Error
				if !errors.As(err, &e) || e.Err != ErrCount || !strings.Contains(err.Error(), "brought") {
					t.Fatalf("%s, rank %d, call %d: %v", w.name, c.rank, i, err)
				}
			}
			err := w.AllToAllV(At(w.s), dst.at(0), recv, src.at(0), send, elem.Float32)
			if !errors.Is(err, ErrCount) || !strings.Contains(err.Error(), "rank 2 sends 700 float32 elements to rank 1, which expects 701") {
				t.Fatalf("%s, rank %d: AllToAllV: %v", w.name, c.rank, err)
			}
			src.free(t)
			dst.free(t)
			deviceReductions[int32](t, w, 1000, elem.Sum)

			// A message of another length is told by its receiver.
			a := device[int32](t, w, 2000)
			for _, m := range []struct {
				sent, want int
				err        error
			}{{1000, 1, ErrTruncate}, {1000, 1999, ErrCount}, {8, 5, ErrTruncate}, {8, 12, ErrCount}, {8, 1000, ErrCount}} {
				switch c.rank {
				case 0:
					commtest.Must(t, w.Send(At(w.s), a.at(0), m.sent, elem.Int32, 1))
				case 1:
					err := w.Recv(At(w.s), a.at(0), m.want, elem.Int32, 0)
					if !errors.Is(err, m.err) || !strings.Contains(err.Error(), fmt.Sprint(m.want)) {
						t.Fatalf("%s: Recv of %d: %v", w.name, m.want, err)
					}
				}
			}
			a.free(t)
			deviceMessages[float32](t, w, 300)
		})
	})
}

// TestDeviceGraph: an all-reduce between the devices is captured once and replayed; what goes through the host is refused.
func TestDeviceGraph(t *testing.T) {
	onDevices(t, []int{2, 3}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		everyWay(t, c, d, func(t *testing.T, w way) {
			x := device[int32](t, w, 600)
			y := x.at(500)
			commtest.Must(t, w.s.BeginCapture(cuda.ThreadLocal))
			big := w.AllReduce(At(w.s), x.at(0), x.at(0), 500, elem.Int32, elem.Sum)
			if w.path != Peer {
				if big == nil || !strings.Contains(big.Error(), "is being captured") {
					t.Fatalf("%s: captured: %v", w.name, big)
				}
				commtest.Must(t, w.s.Abandon())
				x.free(t)
				return
			}
			commtest.Must(t, big)
			commtest.Must(t, w.AllReduce(At(w.s), y, y, 5, elem.Int32, elem.Sum)) // in one step
			if err := w.Broadcast(At(w.s), x.at(0), 500, elem.Int32, 0); err == nil {
				t.Fatal("a Broadcast was captured")
			}
			g := must1(w.s.EndCapture())(t)
			exec := must1(g.Instantiate())(t)
			commtest.Must(t, w.s.Fill(x.at(0), 4, 1, 600))
			want := 1
			for range 5 {
				commtest.Must(t, exec.Launch(w.s))
				commtest.Must(t, w.AllReduce(At(w.s), y, y, 1, elem.Int32, elem.Max)) // beside the graph
				want *= c.size
			}
			commtest.Must(t, w.s.Synchronize())
			all := make([]int32, 600)
			for i := range all {
				if all[i] = int32(want); i >= 505 {
					all[i] = 1
				}
			}
			x.Same(t, all, "graph")
			commtest.Must(t, errors.Join(exec.Close(), g.Close()))
		})
	})
}

func must1[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T { t.Helper(); commtest.Must(t, err); return v }
}

// TestDevicePaths is about which path is taken, and why.
func TestDevicePaths(t *testing.T) {
	needsDouble(t)
	onDevices(t, []int{2}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		yes, no := &Aware{true, "told so"}, &Aware{false, "told not"}
		for _, tc := range []struct {
			path         Path
			aware        *Aware
			peers        string
			want         Path
			reason, fail string
		}{
			{Auto, yes, "1", Peer, "the devices reach each other", ""},
			{Auto, yes, "0", AwareMPI, "told so", ""},
			{Auto, no, "0", Staged, "told not; no peer memory: ", ""},
			{Auto, &Aware{c.rank == 0, "who knows"}, "0", Staged, "who knows", ""}, // the ranks differ
			{AwareMPI, no, "1", AwareMPI, "told not", ""},
			{Staged, yes, "1", Staged, "told so", ""},
			{Staged, nil, "1", Staged, "LOCKSTEP_MPI_CUDA=no", ""},
			{Peer, yes, "0", 0, "", "has no peer access to GPU"},
			{9, yes, "1", 0, "", "path 9"},
		} {
			t.Setenv("FAKECUDA_PEERS", tc.peers)
			k, err := c.OnDevice(d, DeviceConfig{Path: tc.path, Aware: tc.aware})
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
			deviceReductions[float32](t, way{"auto", k, k.in}, 200, elem.Sum)
			commtest.Must(t, k.Close())
		}
		// Without memory to share, and without pinned memory.
		t.Setenv("FAKECUDA_FAIL", "cuMemHostRegister_v2=1")
		k, err := c.OnDevice(d, DeviceConfig{Path: Staged})
		commtest.Must(t, err)
		if !strings.Contains(k.Reason(), "through MPI on the host, since ") || !strings.Contains(k.Reason(), "cuMemHostRegister") {
			t.Fatalf("reason %q", k.Reason())
		}
		commtest.Must(t, k.Close())
		if c.rank == 1 {
			t.Setenv("FAKECUDA_FAIL", "cuMemHostAlloc=2")
		} else {
			t.Setenv("FAKECUDA_FAIL", "")
		}
		if _, err = c.OnDevice(d, DeviceConfig{}); err == nil || !strings.Contains(err.Error(), "cuMemHostAlloc") {
			t.Fatalf("rank %d: %v", c.rank, err)
		}
		t.Setenv("FAKECUDA_FAIL", "")
	})
}

// TestShare: every rank reads and writes the memory of the others.
func TestShare(t *testing.T) {
	onDevices(t, []int{1, 3}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		s := must1(d.NewStream(0))(t)
		bytes := 64 * (c.rank + 1) // of another size each
		mem := must1(d.Malloc(256 + bytes))(t)
		mine := unsafe.Add(mem, 256) // not where the allocation begins
		commtest.Must(t, s.Fill(mine, 4, uint64(c.rank+1), bytes/4))
		commtest.Must(t, s.Synchronize())
		w, err := c.Share(d, mine, bytes)
		commtest.Must(t, err)
		p, err := c.OpenPeers(d, 0)
		commtest.Must(t, err)
		commtest.Must(t, p.Barrier(s))
		seen := must1(d.MallocHost(4))(t)
		for r := range c.size {
			commtest.Must(t, s.Copy(seen, unsafe.Add(w.At(r), 64*r+60), 4)) // its last word
			commtest.Must(t, s.Synchronize())
			if got := *(*uint32)(seen); got != uint32(r+1) {
				t.Fatalf("rank %d sees %d of rank %d", c.rank, got, r)
			}
		}
		commtest.Must(t, p.Barrier(s))
		commtest.Must(t, s.Fill(w.At((c.rank+1)%c.size), 4, uint64(50+c.rank), 1))
		commtest.Must(t, p.Barrier(s))
		commtest.Must(t, s.Copy(seen, mine, 4))
		commtest.Must(t, s.Synchronize())
		if got, want := *(*uint32)(seen), uint32(50+(c.rank+c.size-1)%c.size); got != want {
			t.Fatalf("rank %d was written %d, want %d", c.rank, got, want)
		}
		for range 2 {
			commtest.Must(t, w.Close())
			commtest.Must(t, p.Close())
		}
		commtest.Must(t, d.Free(mem))

		// One rank has memory that cannot be shared: all learn it.
		if c.size > 1 && !onGPU() {
			if c.rank == 1 {
				t.Setenv("FAKECUDA_SHARED", "0")
			}
			mem = must1(d.Malloc(64))(t)
			if _, err := c.Share(d, mem, 64); err == nil || !strings.Contains(err.Error(), "cuIpcGetMemHandle") {
				t.Fatalf("rank %d: %v", c.rank, err)
			}
			commtest.Must(t, d.Free(mem))
		}
		commtest.Must(t, d.FreeHost(seen))
		commtest.Must(t, s.Close())
	})
}

func TestAwareness(t *testing.T) {
	for _, tc := range []struct {
		env, kinds string
		known      bool
		query, gpu int
		want       bool
		reason     string
	}{
		{"", "", false, -1, -1, false, "MPI 1.0 cannot say whether it takes device memory"},
		{"", "", false, 1, -1, true, "MPIX_Query_cuda_support of MPI 1.0 says yes"},
		{"", "", false, 0, 1, false, "MPIX_Query_cuda_support of MPI 1.0 says no"},
		{"", "", false, -1, 1, true, "MPIX_GPU_query_support of MPI 1.0 says yes"},
		{"", "", false, -1, 0, false, "MPIX_GPU_query_support of MPI 1.0 says no"},
		{"", "system,mpi", true, 1, 1, false, `mpi_memory_alloc_kinds of MPI 1.0 is "system,mpi"`},
		{"", "system, cuda:host:device ,mpi", true, 0, 0, true, "mpi_memory_alloc_kinds"},
		{"", "system,cuda", true, 0, 0, true, "mpi_memory_alloc_kinds"},
		{"", "system,cuda:host", true, 1, 1, false, "mpi_memory_alloc_kinds"},
		{"", "system,rocm:device", true, 1, 1, false, "mpi_memory_alloc_kinds"},
		{"yes", "system", true, 0, 0, true, "LOCKSTEP_MPI_CUDA=yes"},
		{"no", "cuda", true, 1, 1, false, "LOCKSTEP_MPI_CUDA=no"},
	} {
		a, err := awareness(tc.env, tc.kinds, tc.known, tc.query, tc.gpu, "MPI 1.0")
		if err != nil || a.Yes != tc.want || !strings.Contains(a.Reason, tc.reason) {
			t.Errorf("%+v: %+v, %v", tc, a, err)
		}
	}
	if _, err := awareness("maybe", "", false, 1, 1, ""); err == nil || !strings.Contains(err.Error(), `"maybe": want yes or no`) {
		t.Errorf("maybe: %v", err)
	}
	if _, err := CUDAAware(); err == nil {
		t.Error("MPI answers before it runs")
	}
	onRanks(t, []int{1}, func(t *testing.T, c *Comm) { // the library at hand has an answer, and is not hurt by the question
		a, err := CUDAAware()
		if err != nil || a.Reason == "" {
			t.Fatalf("%+v, %v", a, err)
		}
	})
}
