package spmd_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// TestPipeline: pieces are gathered, doubled and added up in a pipeline, as without one.
func TestPipeline(t *testing.T) { everyWay(t, pipelined) }

func pipelined(t *testing.T, w *spmd.World) {
	const part, most = 300, 7
	ranks, me := w.Size(), w.Rank()
	s, gathers, sums := stream(t, w, "main"), stream(t, w, "gathers"), stream(t, w, "sums")
	mine, x, y := alloc[float32](t, w, part*most), alloc[float32](t, w, part*most*ranks),
		alloc[float32](t, w, part*most*ranks)
	c := w.Comm()
	for _, pieces := range []int{0, 1, 2, most} {
		run := func() error {
			return spmd.Pipeline(s, pieces,
				spmd.Stage{Stream: gathers, Do: func(k int) error {
					return spmd.AllGather(c.On(gathers), x.Slice(k*part*ranks, (k+1)*part*ranks),
						mine.Slice(k*part, (k+1)*part))
				}},
				spmd.Stage{Stream: s, Do: func(k int) error {
					lo, hi := k*part*ranks, (k+1)*part*ranks
					if err := spmd.Fill(s, y.Slice(lo, hi), float32(me)); err != nil {
						return err
					}
					return addTo.Launch(s, spmd.Cover1D(hi-lo, 256), y.Slice(lo, hi).Arg(),
						x.Slice(lo, hi).Arg(), spmd.F32(2), spmd.I32(hi-lo))
				}},
				spmd.Stage{Stream: sums, Do: func(k int) error {
					piece := y.Slice(k*part*ranks, (k+1)*part*ranks)
					return spmd.AllReduce(c.On(sums), piece, piece, spmd.Sum)
				}})
		}
		ways := []func() error{run, run}
		if c.Capturable() == nil {
			g, err := s.Capture(run)
			must(t, err)
			defer func() { must(t, g.Close()) }()
			ways = append(ways, func() error { return errors.Join(g.Launch(s), g.Launch(s)) })
		}
		for i, way := range ways {
			values := make([]float32, mine.Len())
			for j := range values {
				values[j] = float32(j + 1000*me + i)
			}
			must(t, mine.CopyFrom(values))
			must(t, x.SetAll(-1))
			must(t, y.SetAll(-1))
			must(t, way())
			must(t, s.Synchronize()) // which waits for all stages
			got := make([]float32, y.Len())
			must(t, y.CopyTo(got))
			for j, v := range got {
				piece, from, at := j/(part*ranks), j/part%ranks, j%part
				in := float32(piece*part + at + 1000*from + i)
				want := 2*float32(ranks)*in + float32(ranks*(ranks-1)/2)
				if piece >= pieces {
					want = -1
				}
				if v != want {
					t.Fatalf("%d pieces, way %d: [%d] is %v, want %v", pieces, i, j, v, want)
				}
			}
		}
	}
}

// TestPipelineOrder: the issued calls, and the stages that a stage waits for.
func TestPipelineOrder(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		a, b, c := stream(t, w, "a"), stream(t, w, "b"), stream(t, w, "c")
		var issued []string
		var done [4]atomic.Int32 // pieces, by stage; the first stands for the work ahead of all
		done[0].Store(3)
		gate := make(chan struct{})
		// nothing begins before the commands of the first stream
		must(t, a.HostFunc(func() error { <-gate; return nil }))
		names := map[*spmd.Stream]string{a: "a", b: "b", c: "c"}
		stage := func(s *spmd.Stream, i int) spmd.Stage {
			return spmd.Stage{Stream: s, Do: func(k int) error {
				issued = append(issued, fmt.Sprint(names[s], k))
				return s.HostFunc(func() error {
					if ahead := done[i-1].Load(); ahead < int32(k+1) {
						return fmt.Errorf("stage %s begins piece %d, and the one ahead has done %d", names[s], k, ahead)
					}
					done[i].Add(1)
					return nil
				})
			}}
		}
		must(t, spmd.Pipeline(a, 3, stage(b, 1), stage(a, 2), stage(c, 3)))
		close(gate)
		must(t, a.Synchronize())
		for i := range done {
			if n := done[i].Load(); n != 3 {
				t.Errorf("stage %d has done %d pieces of 3", i, n)
			}
		}
		if got := strings.Join(issued, " "); got != "b0 a0 b1 c0 a1 b2 c1 a2 c2" {
			t.Errorf("issued in the order %s", got)
		}
		for what, err := range map[string]error{
			"stages 0 and 1 are on the same stream \"b\"": spmd.Pipeline(a, 3, stage(b, 1), stage(b, 2)),
			"stage 0 has no stream": spmd.Pipeline(a, 3,
				spmd.Stage{Do: func(int) error { return nil }}),
			"no more": spmd.Pipeline(a, 3, spmd.Stage{Stream: b,
				Do: func(k int) error { return errors.New("no more") }}),
		} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%v, want %q", err, what)
			}
		}
	})
}
