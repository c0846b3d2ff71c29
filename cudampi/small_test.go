package cudampi

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/cuda"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
)

// TestSmallCollectives is about the kernel of small collectives at its own sizes: packs, blocks and their ends, of which
// calls take turns, so that the halves of the inbox are used again after calls of other commtest.Lengths, on streams that run late.
func TestSmallCollectives(t *testing.T) {
	onDevices(t, append(slices.Clone(counts), 5), map[string]string{"FAKECUDA_DELAY": "100", "FAKECUDA_DEVICES": "5"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		everyWay(t, c, d, func(t *testing.T, w way) {
			if w.small == nil && w.path != Peer {
				return
			}
			other := w
			other.s = must1(d.NewStream(0))(t)
			var results []*onDevice[int32]
			most := smallMost
			if w.path == Peer {
				most = w.peers.AtOnce()
			}
			most /= 4
			sizes := []int{most, 1, most, most - 1, 3, 513, 512, 511, most, 4, 5, 1025, most}
			for round, n := range sizes {
				in := commtest.Input[int32](c.rank+100*round, n)
				w := [...]way{w, other}[round/2%2]
				x := deviceFilled(t, w, in)
				commtest.Must(t, w.s.Synchronize())
				commtest.Must(t, w.AllReduce(At(w.s), x.at(0), x.at(0), n, elem.Int32, elem.Sum))
				results = append(results, x)
			}
			for round, x := range results {
				want := make([]int32, sizes[round])
				for r := range c.size {
					for i, v := range commtest.Input[int32](r+100*round, len(want)) {
						want[i] += v
					}
				}
				x.Same(t, want, fmt.Sprintf("small AllReduce %d", round))
			}
			deviceReductions[int8](t, w, 4*most, allOps...)
			deviceReductions[elem.F16](t, w, 2047, elem.Sum, elem.Avg)
			deviceReductions[float64](t, w, 257, elem.Prod)
			if w.path == Peer { // of host memory only all-reduces
				for _, n := range []int{1, 15, 2047, 2048, 2049, 4 * most, 4*most + 1} { // the last goes another way
					deviceMoves[int8](t, w, n)
				}
				deviceMoves[float32](t, w, 513)
				deviceMoves[float64](t, w, most/2)
			}
			commtest.Must(t, other.s.Close())
		})
	})
}

// TestSmallOnSharedDevice: kernels that wait for each other are not for ranks that share a device.
func TestSmallOnSharedDevice(t *testing.T) {
	needsDouble(t)
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_DEVICES": "1"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		k, err := c.OnDevice(d, DeviceConfig{Path: Staged})
		commtest.Must(t, err)
		if k.small != nil || !strings.HasSuffix(k.Reason(), "; small all-reduces by copies, since ranks share a device") {
			t.Fatalf("%q", k.Reason())
		}
		deviceReductions[float32](t, way{"shared", k, k.in}, 7, elem.Sum)
		commtest.Must(t, k.Close())
	})
}

// TestSmallUnreachable: a kernel that does not see host memory is found out before it computes anything.
func TestSmallUnreachable(t *testing.T) {
	needsDouble(t)
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_KERNELS": ""}, func(t *testing.T, c *Comm, d *cuda.Device) {
		k, err := c.OnDevice(d, DeviceConfig{Path: Staged})
		commtest.Must(t, err)
		if k.small != nil || !strings.Contains(k.Reason(), "kernels do not reach host memory: 0x0 instead of 0x5eed") {
			t.Fatalf("%q", k.Reason())
		}
		deviceReductions[float32](t, way{"unreachable", k, k.in}, 7, elem.Sum)
		commtest.Must(t, k.Close())
	})
}

// TestSmallRankFails: rank 1 cannot launch its kernel, and the others wait for it on their devices. When it ends the job,
// as a program does that gets an error, all ranks end.
func TestSmallRankFails(t *testing.T) {
	needsDouble(t)
	const env = "LOCKSTEP_CUDAMPI_FAILS"
	if os.Getenv(env) != "" { // a rank of the job below
		compile = func(int) ([]byte, error) { return []byte("image"), nil }
		c := must1(Start())(t)
		d := must1(cuda.Open(c.rank))(t)
		k := must1(c.OnDevice(d, DeviceConfig{Path: Staged}))(t)
		s := must1(d.NewStream(0))(t)
		x := must1(d.Malloc(64))(t)
		if c.rank == 1 {
			t.Setenv("FAKECUDA_FAIL", "cuLaunchKernelEx=700")
		}
		err := k.AllReduce(At(s), x, x, 1, elem.Float32, elem.Sum)
		if c.rank == 1 {
			fmt.Println("rank 1 has:", err)
			c.Abort(7)
		}
		commtest.Must(t, err)
		commtest.Must(t, c.WaitStream(s))
		t.Fatal("the others have gone on without rank 1")
	}
	dir := double(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	cmd := mpirun.Command(ctx, 3, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=45s")
	cmd.Env = append(cmd.Env, env+"=1", "FAKECUDA_KERNELS="+dir+"/libemulate.so", "FAKECUDA_SHARED=1",
		"LD_LIBRARY_PATH="+dir+":"+os.Getenv("LD_LIBRARY_PATH"), "FAKECUDA_DEVICES=4", "FAKECUDA_DELAY=0", awareEnv+"=no")
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err == nil || ctx.Err() != nil || !strings.Contains(text, "rank 1 has:") || !strings.Contains(text, "CUDA_ERROR_ILLEGAL_ADDRESS") ||
		strings.Contains(text, "gone on") || strings.Contains(text, "timed out") {
		t.Fatalf("%v\n%s", err, text)
	}
}
