package peer

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/campaign"
	"lockstep/internal/commtest"
	"lockstep/internal/devtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/shm"
)

// TestSmallCollectives is about the kernel of small collectives at its own sizes: packs, blocks and their ends, of which
// calls take turns, so that the halves of the inbox are used again after calls of other lengths, on streams that run late.
func TestSmallCollectives(t *testing.T) {
	ranks := campaign.Some(t, "numbers of ranks of small collectives of devices", []int{1, 2, 3, 4, 5}, func(n int) bool { return n == 3 })
	devtest.OnDevices(t, ranks, map[string]string{"FAKECUDA_DELAY": "100", "FAKECUDA_DEVICES": "5"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		everyWay(t, c, d, func(t *testing.T, w devtest.Way) {
			if nodeOf(w).small == nil && w.Path() != cudampi.Peer {
				return
			}
			other := w
			other.S = devtest.Must1(d.NewStream(0))(t)
			var results []*devtest.Buffer[int32]
			most := smallMost
			if w.Path() == cudampi.Peer {
				most = nodeOf(w).peers.AtOnce()
			}
			most /= 4
			sizes := []int{most, 1, most, most - 1, 3, 513, 512, 511, most, 4, 5, 1025, most}
			for round, n := range sizes {
				in := commtest.Input[int32](c.Rank()+100*round, n)
				w := [...]devtest.Way{w, other}[round/2%2]
				x := devtest.Filled(t, w, in)
				commtest.Must(t, w.S.Synchronize())
				commtest.Must(t, w.AllReduce(cudampi.At(w.S), x.At(0), x.At(0), n, elem.Int32, elem.Sum))
				results = append(results, x)
			}
			for round, x := range results {
				want := make([]int32, sizes[round])
				for r := range c.Size() {
					for i, v := range commtest.Input[int32](r+100*round, len(want)) {
						want[i] += v
					}
				}
				x.Same(t, want, fmt.Sprintf("small AllReduce %d", round))
			}
			devtest.Reductions[int8](t, w, 4*most, devtest.AllOps...)
			devtest.Reductions[elem.F16](t, w, 2047, elem.Sum, elem.Avg)
			devtest.Reductions[float64](t, w, 257, elem.Prod)
			if w.Path() == cudampi.Peer { // of host memory only all-reduces
				for _, n := range []int{1, 15, 2047, 2048, 2049, 4 * most, 4*most + 1} { // the last goes another way
					devtest.Moves[int8](t, w, n)
				}
				devtest.Moves[float32](t, w, 513)
				devtest.Moves[float64](t, w, most/2)
			}
			commtest.Must(t, other.S.Close())
		})
	})
}

// TestSmallOnSharedDevice: kernels that wait for each other are not for ranks that share a device.
func TestSmallOnSharedDevice(t *testing.T) {
	devtest.NeedsDouble(t)
	devtest.OnDevices(t, []int{2}, map[string]string{"FAKECUDA_DEVICES": "1"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		k, n, err := open(c, d, cudampi.DeviceConfig{Path: cudampi.Staged})
		commtest.Must(t, err)
		if n.small != nil || !strings.HasSuffix(k.Reason(), "; small all-reduces by copies, since ranks share a device") {
			t.Fatalf("%q", k.Reason())
		}
		devtest.Reductions[float32](t, on(t, "shared", c, d, k), 7, elem.Sum)
		commtest.Must(t, k.Close())
	})
}

// TestSmallUnreachable: a kernel that does not see host memory is found out before it computes anything.
func TestSmallUnreachable(t *testing.T) {
	devtest.NeedsDouble(t)
	devtest.OnDevices(t, []int{2}, map[string]string{"FAKECUDA_KERNELS": ""}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		k, n, err := open(c, d, cudampi.DeviceConfig{Path: cudampi.Staged})
		commtest.Must(t, err)
		if n.small != nil || !strings.Contains(k.Reason(), "kernels do not reach host memory: 0x0 instead of 0x5eed") {
			t.Fatalf("%q", k.Reason())
		}
		devtest.Reductions[float32](t, on(t, "unreachable", c, d, k), 7, elem.Sum)
		commtest.Must(t, k.Close())
	})
}

// TestSmallRankFails: rank 1 cannot launch its kernel, and the others wait for it on their devices. When it ends the job,
// as a program does that gets an error, all ranks end.
func TestSmallRankFails(t *testing.T) {
	devtest.NeedsDouble(t)
	const env = "LOCKSTEP_PEER_FAILS"
	if os.Getenv(env) != "" { // a rank of the job below
		devtest.NoCompiler()
		c := devtest.Must1(shm.Share(devtest.Must1(cudampi.Start())(t)))(t)
		d := devtest.Must1(cuda.Open(c.Rank()))(t)
		k, _, err := open(c, d, cudampi.DeviceConfig{Path: cudampi.Staged})
		commtest.Must(t, err)
		s := devtest.Must1(d.NewStream(0))(t)
		x := devtest.Must1(d.Malloc(64))(t)
		if c.Rank() == 1 {
			t.Setenv("FAKECUDA_FAIL", "cuLaunchKernelEx=700")
		}
		err = k.AllReduce(cudampi.At(s), x, x, 1, elem.Float32, elem.Sum)
		if c.Rank() == 1 {
			fmt.Println("rank 1 has:", err)
			c.Abort(7)
		}
		commtest.Must(t, err)
		commtest.Must(t, c.WaitStream(s))
		t.Fatal("the others have gone on without rank 1")
	}
	dir := devtest.Double(t)
	ctx := mpirun.Patience(t)
	cmd := mpirun.Command(ctx, 3, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout="+mpirun.Limit(t).String())
	cmd.Env = append(cmd.Env, env+"=1", "FAKECUDA_KERNELS="+dir+"/libemulate.so", "FAKECUDA_SHARED=1",
		"LD_LIBRARY_PATH="+dir+":"+os.Getenv("LD_LIBRARY_PATH"), "FAKECUDA_DEVICES=4", "FAKECUDA_DELAY=0", "LOCKSTEP_MPI_CUDA=no")
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err == nil || ctx.Err() != nil || !strings.Contains(text, "rank 1 has:") || !strings.Contains(text, "CUDA_ERROR_ILLEGAL_ADDRESS") ||
		strings.Contains(text, "gone on") || strings.Contains(text, "timed out") {
		t.Fatalf("%v\n%s", err, text)
	}
}
