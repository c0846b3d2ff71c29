package peer

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/shm"
)

// TestSmallCollectives is about the kernel of small collectives at its own sizes: packs, blocks and
// their ends, of which calls take turns, so that the halves of the inbox are used again after calls
// of other lengths. Package transport has the other kinds of calls.
func TestSmallCollectives(t *testing.T) {
	ranks := testkit.Some(t, "numbers of ranks of small collectives of devices", []int{1, 2, 3, 4, 5},
		func(n int) bool { return n == 3 })
	onDevices(t, ranks, map[string]string{"FAKECUDA_DELAY": "100", "FAKECUDA_DEVICES": "5"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			at, p := newSite(t, c, d), commtest.Must1(open(c, d, 0))(t)
			var results []*buffer[int32]
			most := p.AtOnce(AllReduce) / 4
			sizes := []int{most, 1, most, most - 1, 3, 513, 512, 511, most + 1, 4, 5, 1025, most}
			for round, n := range sizes {
				x := filled(t, at, commtest.Input[int32](c.Rank()+100*round, n))
				commtest.Must(t, p.Do(at.s, Transfer{What: AllReduce, Dst: x.ptr(0), Src: x.ptr(0), N: n,
					Type: elem.Int32, Op: elem.Sum}))
				results = append(results, x)
			}
			for round, x := range results {
				want := make([]int32, sizes[round])
				for r := range c.Size() {
					for i, v := range commtest.Input[int32](r+100*round, len(want)) {
						want[i] += v
					}
				}
				x.same(t, want, fmt.Sprintf("small AllReduce %d", round))
			}
			commtest.Must(t, at.s.Close())
			commtest.Must(t, p.Close())
		})
}

// TestLongCollectives has parts that are longer than what one kernel of small collectives takes.
func TestLongCollectives(t *testing.T) {
	const n, root = 2500, 1
	onDevices(t, []int{3}, map[string]string{"FAKECUDA_DELAY": "100"},
		func(t *testing.T, c *shm.NodeComm, d *cuda.Device) {
			peersAtOnce, messagesMost = 2*smallBlock, 8000
			x := openRoom(t, c, d, 2<<20)
			me, parts := c.Rank(), cudampi.Parts{Each: n}
			input := func(r int) []int32 { return commtest.Input[int32](r, c.Size()*n) }
			sum := make([]int32, c.Size()*n)
			for r := range c.Size() {
				for i, v := range input(r) {
					sum[i] += v
				}
			}
			for what := Reduce; what <= Scatter; what++ {
				src, dst := filled(t, x.site, input(me)), alloc[int32](t, x.site, c.Size()*n)
				call := Transfer{What: what, Dst: dst.ptr(0), Src: src.ptr(0), Send: parts, Recv: parts, N: n,
					Type: elem.Int32, Op: elem.Sum, Root: root}
				if what == Broadcast && me == root {
					call.Dst = call.Src
				}
				want := slices.Clone(dst.host.Data())
				switch {
				case what == Reduce && me == root:
					copy(want, sum[:n])
				case what == ReduceScatter:
					copy(want, sum[me*n:][:n])
				case what == Broadcast && me != root:
					copy(want, input(root)[:n])
				case what == Scatter:
					copy(want, input(root)[me*n:][:n])
				}
				for r := range c.Size() {
					switch {
					case what == AllGather || what == Gather && me == root:
						copy(want[r*n:], input(r)[:n])
					case what == AllToAll:
						copy(want[r*n:], input(r)[me*n:][:n])
					}
				}
				commtest.Must(t, x.Do(x.s, call))
				dst.same(t, want, fmt.Sprintf("collective %d", what))
				src.same(t, input(me), "what was given")
			}
			x.close(t)
			peersAtOnce, messagesMost = smallBlocks*smallBlock, 2<<20
		})
}

// TestSmallRankFails: rank 1 cannot launch its kernel, and the others wait for it on their devices.
// When it ends the job, as a program does that gets an error, all ranks end.
func TestSmallRankFails(t *testing.T) {
	mpirun.Job(t)
	commtest.NeedsDouble(t)
	const env = "LOCKSTEP_PEER_FAILS"
	if os.Getenv(env) != "" { // a rank of the job below
		c := commtest.Must1(shm.Share(commtest.Must1(cudampi.Start())(t)))(t)
		d := commtest.Must1(cuda.Open(c.Rank()))(t)
		p := commtest.Must1(Open(c, d, 0))(t)
		s := commtest.Must1(d.NewStream(0))(t)
		x := commtest.Must1(d.Malloc(64))(t)
		if c.Rank() == 1 {
			t.Setenv("FAKECUDA_FAIL", "cuLaunchKernelEx=700")
		}
		err := p.Do(s, Transfer{What: AllReduce, Dst: x, Src: x, N: 1, Type: elem.Float32, Op: elem.Sum})
		if c.Rank() == 1 {
			fmt.Println("rank 1 has:", err)
			c.Abort(7)
		}
		commtest.Must(t, err)
		commtest.Must(t, s.Synchronize())
		t.Fatal("the others have gone on without rank 1")
	}
	dir := commtest.Double(t)
	ctx := mpirun.Patience(t)
	cmd := mpirun.Command(ctx, 3, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout="+mpirun.Limit(t).String())
	cmd.Env = append(cmd.Env, env+"=1", "FAKECUDA_KERNELS="+dir+"/libemulate.so", "FAKECUDA_SHARED=1",
		"FAKECUDA_PEERS=1",
		"LD_LIBRARY_PATH="+dir+":"+os.Getenv("LD_LIBRARY_PATH"), "FAKECUDA_DEVICES=4", "FAKECUDA_DELAY=0",
		"LOCKSTEP_MPI_CUDA=no")
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err == nil || ctx.Err() != nil || !strings.Contains(text, "rank 1 has:") ||
		!strings.Contains(text, "CUDA_ERROR_ILLEGAL_ADDRESS") ||
		strings.Contains(text, "gone on") || strings.Contains(text, "timed out") {
		t.Fatalf("%v\n%s", err, text)
	}
}
