package peer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/ccall"
	"lockstep/internal/commtest"
	"lockstep/internal/devtest"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/internal/transfer"
)

// onRings calls fn with each kind of rings.
func onRings(t *testing.T, c *shm.Comm, d *cuda.Device, fn func(t *testing.T, w devtest.Way)) {
	t.Helper()
	everyWay(t, c, d, func(t *testing.T, w devtest.Way) {
		if nodeOf(w).rings != nil {
			fn(t, w)
		}
	})
}

// TestRings sends messages of lengths about those of chunks, slots and rings, also to the sender itself, as fast as
// devices that are late allow.
func TestRings(t *testing.T) {
	devtest.CountsLeft(t)
	devtest.OnDevices(t, devtest.Counts, map[string]string{"FAKECUDA_DELAY": "50"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		devtest.Small(t)
		onRings(t, c, d, func(t *testing.T, w devtest.Way) {
			slot, least := nodeOf(w).rings.slot, nodeOf(w).rings.least
			for _, n := range []int{1, least - 1, least, least + 1, slot - 1, slot, slot + 1, ringSlots * slot, ringSlots*slot + 1, 9*slot - 5} {
				devtest.Messages[int8](t, w, n)
			}
			devtest.Messages[float64](t, w, 333)
			smallMessage = smallMost // by kernels, one message a slot
			for _, n := range []int{2, 127, 2047, 2048, 2049, smallMost - 1, smallMost, smallMost + 1} {
				devtest.Messages[int8](t, w, n)
			}
			smallMessage = 64
		})
	})
}

// TestRingsAtTheirSizes is TestRings with rings as programs have them: a message of several chunks of many bytes.
func TestRingsAtTheirSizes(t *testing.T) {
	devtest.OnDevices(t, []int{2, 3}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		onRings(t, c, d, func(t *testing.T, w devtest.Way) {
			n := nodeOf(w).rings.slot*3/2 + 1
			in := make([]uint8, n)
			fill := func(rank int) []uint8 {
				r := rand.NewChaCha8([32]byte{byte(rank)})
				_, err := r.Read(in)
				commtest.Must(t, err)
				return in
			}
			next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
			src, dst := devtest.Filled(t, w, fill(c.Rank())), devtest.Alloc[uint8](t, w, n)
			commtest.Must(t, w.SendRecv(cudampi.At(w.S), dst.At(0), n, prev, src.At(0), n, next, elem.Uint8))
			dst.Same(t, fill(prev), "SendRecv")
			src.Free(t)
		})
	})
}

// TestRingsInAnyOrder has every rank send to all, in orders of their own, more than the rings hold.
func TestRingsInAnyOrder(t *testing.T) {
	devtest.OnDevices(t, []int{3, 4}, map[string]string{"FAKECUDA_DELAY": "20"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		devtest.Small(t)
		onRings(t, c, d, func(t *testing.T, w devtest.Way) {
			const each = 4
			length := func(from, to, k int) int { return (from*7+to*3+k*1001)%3000 + k }
			var list []cudampi.Message
			var out []*devtest.Buffer[int8]
			into := map[int][]*devtest.Buffer[int8]{}
			perRank := make([][]cudampi.Message, 2*c.Size())
			for r := range c.Size() {
				for k := range each {
					a := devtest.Filled(t, w, commtest.Input[int8](c.Rank()*100+r*10+k, length(c.Rank(), r, k)))
					b := devtest.Alloc[int8](t, w, length(r, c.Rank(), k))
					out, into[r] = append(out, a), append(into[r], b)
					perRank[2*r] = append(perRank[2*r], devtest.Sends(a.At(0), a.Host.N, elem.Int8, r))
					perRank[2*r+1] = append(perRank[2*r+1], devtest.Receives(b.At(0), b.Host.N, elem.Int8, r))
				}
			}
			random := rand.New(rand.NewPCG(uint64(c.Rank()), 1))
			for left := 2 * c.Size() * each; left > 0; left-- { // those of a rank and direction stay in order
				i := random.IntN(len(perRank))
				for len(perRank[i]) == 0 {
					i = (i + 1) % len(perRank)
				}
				list, perRank[i] = append(list, perRank[i][0]), perRank[i][1:]
			}
			commtest.Must(t, w.Exchange(cudampi.At(w.S), list...))
			for _, a := range out {
				a.Free(t)
			}
			for r := range c.Size() {
				for k, b := range into[r] {
					b.Same(t, commtest.Input[int8](r*100+c.Rank()*10+k, length(r, c.Rank(), k)), fmt.Sprintf("message %d from rank %d", k, r))
				}
			}
		})
	})
}

// TestRingsFail: a device that fails in the middle of a message is an error that says so, on the rank where it happens.
func TestRingsFail(t *testing.T) {
	devtest.NeedsDouble(t)
	devtest.OnDevices(t, []int{2}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		devtest.Small(t)
		for _, call := range []string{"cuMemcpyAsync=700@3", "cuEventRecord=700@4", "cuEventQuery=700@5"} {
			onRings(t, c, d, func(t *testing.T, w devtest.Way) {
				x, y := devtest.Alloc[int32](t, w, 2000), devtest.Alloc[int32](t, w, 2000)
				t.Setenv("FAKECUDA_FAIL", call)
				err := w.SendRecv(cudampi.At(w.S), y.At(0), 2000, 1-c.Rank(), x.At(0), 2000, 1-c.Rank(), elem.Int32)
				t.Setenv("FAKECUDA_FAIL", "")
				var e *ccall.Error
				if !errors.As(err, &e) || !errors.Is(err, cuda.ErrIllegalAddress) {
					t.Fatalf("%s, rank %d, %s: %v", w.Name, c.Rank(), call, err)
				}
				x.Free(t)
				y.Free(t)
			})
		}
	})
}

// TestRingsFallBack: where one rank has no memory for rings, all send through MPI, and say why.
func TestRingsFallBack(t *testing.T) {
	devtest.NeedsDouble(t)
	devtest.OnDevices(t, []int{2}, nil, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		devtest.Small(t)
		for _, tc := range []struct {
			path cudampi.Path
			fail string
		}{{cudampi.Staged, "cuMemHostRegister_v2=2@3"}, {cudampi.Peer, "cuMemAlloc_v2=2@3"}} {
			if c.Rank() == 1 {
				t.Setenv("FAKECUDA_FAIL", tc.fail)
			}
			k, n, err := open(c, d, cudampi.DeviceConfig{Path: tc.path})
			t.Setenv("FAKECUDA_FAIL", "")
			commtest.Must(t, err)
			call, _, _ := strings.Cut(tc.fail, "_v2")
			if n.rings != nil || k.Path() != tc.path || !strings.Contains(k.Reason(), "; messages through MPI on the host, since ") ||
				!strings.Contains(k.Reason(), call) {
				t.Fatalf("%v: %v, %q", tc.path, k.Path(), k.Reason())
			}
			devtest.Messages[float32](t, on(t, "fallen back", c, d, k), 700)
			commtest.Must(t, k.Close())
		}
	})
}

// TestRingsOrder overwrites what was sent right after the call, and reads what was received, in the order of the stream.
func TestRingsOrder(t *testing.T) {
	devtest.OnDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "400"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		transfer.Sizes.Small = 1024
		onRings(t, c, d, func(t *testing.T, w devtest.Way) {
			const rounds = 60
			for _, n := range []int{16, 2500, 6000} { // by kernels in the user's stream, by kernels beside it, by copies
				sent := make([]int32, rounds*n)
				for i := range sent {
					sent[i] = int32(2*i + 1 - c.Rank())
				}
				in, got := devtest.Filled(t, w, sent), devtest.Alloc[int32](t, w, rounds*n)
				x, y := devtest.Alloc[int32](t, w, n), devtest.Alloc[int32](t, w, n)
				for round := range rounds {
					commtest.Must(t, w.S.Copy(x.At(0), in.At(round*n), 4*n))
					p := cudampi.At(w.S)
					if round%3 == 1 && w.Path() != cudampi.AwareMPI {
						p = devtest.Must1(w.Hold(w.S))(t)
					}
					switch {
					case round%3 < 2:
						commtest.Must(t, w.SendRecv(p, y.At(0), n, 1-c.Rank(), x.At(0), n, 1-c.Rank(), elem.Int32))
					case c.Rank() == 0: // nothing comes back that the stream would wait for
						commtest.Must(t, w.Send(p, x.At(0), n, elem.Int32, 1))
					default:
						commtest.Must(t, w.Recv(p, y.At(0), n, elem.Int32, 0))
					}
					commtest.Must(t, w.S.Fill(x.At(0), 4, 77, n))
					commtest.Must(t, w.S.Copy(got.At(round*n), y.At(0), 4*n))
				}
				for i := range sent {
					sent[i] = int32(2*i + c.Rank())
					if round := i / n; c.Rank() == 0 && round%3 == 2 { // it holds what came before
						sent[i] = sent[i-n]
					}
				}
				got.Same(t, sent, "SendRecv")
				in.Free(t)
				x.Free(t)
				y.Free(t)
			}
		})
	})
}
