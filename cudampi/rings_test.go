package cudampi

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

// onRings calls fn with each kind of rings.
func onRings(t *testing.T, c *Comm, d *cuda.Device, fn func(t *testing.T, w way)) {
	t.Helper()
	everyWay(t, c, d, func(t *testing.T, w way) {
		if w.rings != nil {
			fn(t, w)
		}
	})
}

// TestRings sends messages of commtest.Lengths about those of chunks, slots and rings, also to the sender itself, as fast as
// devices that are late allow.
func TestRings(t *testing.T) {
	onDevices(t, counts, map[string]string{"FAKECUDA_DELAY": "50"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		onRings(t, c, d, func(t *testing.T, w way) {
			slot, least := w.rings.slot, w.rings.least
			for _, n := range []int{1, least - 1, least, least + 1, slot - 1, slot, slot + 1, ringSlots * slot, ringSlots*slot + 1, 9*slot - 5} {
				deviceMessages[int8](t, w, n)
			}
			deviceMessages[float64](t, w, 333)
			smallMessage = smallMost // by kernels, one message a slot
			for _, n := range []int{2, 127, 2047, 2048, 2049, smallMost - 1, smallMost, smallMost + 1} {
				deviceMessages[int8](t, w, n)
			}
			smallMessage = 64
		})
	})
}

// TestRingsAtTheirSizes is TestRings with rings as programs have them: a message of several chunks of many bytes.
func TestRingsAtTheirSizes(t *testing.T) {
	onDevices(t, []int{2, 3}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		onRings(t, c, d, func(t *testing.T, w way) {
			n := w.rings.slot*3/2 + 1
			in := make([]uint8, n)
			fill := func(rank int) []uint8 {
				r := rand.NewChaCha8([32]byte{byte(rank)})
				_, err := r.Read(in)
				commtest.Must(t, err)
				return in
			}
			next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
			src, dst := deviceFilled(t, w, fill(c.rank)), device[uint8](t, w, n)
			commtest.Must(t, w.SendRecv(At(w.s), dst.at(0), n, prev, src.at(0), n, next, elem.Uint8))
			dst.Same(t, fill(prev), "SendRecv")
			src.free(t)
		})
	})
}

// TestRingsInAnyOrder has every rank send to all, in orders of their own, more than the rings hold.
func TestRingsInAnyOrder(t *testing.T) {
	onDevices(t, []int{3, 4}, map[string]string{"FAKECUDA_DELAY": "20"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		onRings(t, c, d, func(t *testing.T, w way) {
			const each = 4
			length := func(from, to, k int) int { return (from*7+to*3+k*1001)%3000 + k }
			var list []Message
			var out []*onDevice[int8]
			into := map[int][]*onDevice[int8]{}
			perRank := make([][]Message, 2*c.size)
			for r := range c.size {
				for k := range each {
					a := deviceFilled(t, w, commtest.Input[int8](c.rank*100+r*10+k, length(c.rank, r, k)))
					b := device[int8](t, w, length(r, c.rank, k))
					out, into[r] = append(out, a), append(into[r], b)
					perRank[2*r] = append(perRank[2*r], Message{a.at(0), a.host.N, elem.Int8, r, false})
					perRank[2*r+1] = append(perRank[2*r+1], Message{b.at(0), b.host.N, elem.Int8, r, true})
				}
			}
			random := rand.New(rand.NewPCG(uint64(c.rank), 1))
			for left := 2 * c.size * each; left > 0; left-- { // those of a rank and direction stay in order
				i := random.IntN(len(perRank))
				for len(perRank[i]) == 0 {
					i = (i + 1) % len(perRank)
				}
				list, perRank[i] = append(list, perRank[i][0]), perRank[i][1:]
			}
			commtest.Must(t, w.Exchange(At(w.s), list...))
			for _, a := range out {
				a.free(t)
			}
			for r := range c.size {
				for k, b := range into[r] {
					b.Same(t, commtest.Input[int8](r*100+c.rank*10+k, length(r, c.rank, k)), fmt.Sprintf("message %d from rank %d", k, r))
				}
			}
		})
	})
}

// TestRingsFail: a device that fails in the middle of a message is an error that says so, on the rank where it happens.
func TestRingsFail(t *testing.T) {
	needsDouble(t)
	onDevices(t, []int{2}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		for _, call := range []string{"cuMemcpyAsync=700@3", "cuEventRecord=700@4", "cuEventQuery=700@5"} {
			onRings(t, c, d, func(t *testing.T, w way) {
				x, y := device[int32](t, w, 2000), device[int32](t, w, 2000)
				t.Setenv("FAKECUDA_FAIL", call)
				err := w.SendRecv(At(w.s), y.at(0), 2000, 1-c.rank, x.at(0), 2000, 1-c.rank, elem.Int32)
				t.Setenv("FAKECUDA_FAIL", "")
				var e *ccall.Error
				if !errors.As(err, &e) || !errors.Is(err, cuda.ErrIllegalAddress) {
					t.Fatalf("%s, rank %d, %s: %v", w.name, c.rank, call, err)
				}
				x.free(t)
				y.free(t)
			})
		}
	})
}

// TestRingsFallBack: where one rank has no memory for rings, all send through MPI, and say why.
func TestRingsFallBack(t *testing.T) {
	needsDouble(t)
	onDevices(t, []int{2}, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		for _, tc := range []struct {
			path Path
			fail string
		}{{Staged, "cuMemHostRegister_v2=2@3"}, {Peer, "cuMemAlloc_v2=2@3"}} {
			if c.rank == 1 {
				t.Setenv("FAKECUDA_FAIL", tc.fail)
			}
			k, err := c.OnDevice(d, DeviceConfig{Path: tc.path})
			t.Setenv("FAKECUDA_FAIL", "")
			commtest.Must(t, err)
			call, _, _ := strings.Cut(tc.fail, "_v2")
			if k.rings != nil || k.Path() != tc.path || !strings.Contains(k.Reason(), "; messages through MPI on the host, since ") ||
				!strings.Contains(k.Reason(), call) {
				t.Fatalf("%v: %v, %q", tc.path, k.Path(), k.Reason())
			}
			deviceMessages[float32](t, way{"fallen back", k, k.in}, 700)
			commtest.Must(t, k.Close())
		}
	})
}

// TestRingsOrder overwrites what was sent right after the call, and reads what was received, in the order of the stream.
func TestRingsOrder(t *testing.T) {
	onDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "400"}, func(t *testing.T, c *Comm, d *cuda.Device) {
		smallBytes = 1024
		onRings(t, c, d, func(t *testing.T, w way) {
			const rounds = 60
			for _, n := range []int{16, 2500, 6000} { // by kernels in the user's stream, by kernels beside it, by copies
				sent := make([]int32, rounds*n)
				for i := range sent {
					sent[i] = int32(2*i + 1 - c.rank)
				}
				in, got := deviceFilled(t, w, sent), device[int32](t, w, rounds*n)
				x, y := device[int32](t, w, n), device[int32](t, w, n)
				for round := range rounds {
					commtest.Must(t, w.s.Copy(x.at(0), in.at(round*n), 4*n))
					p := At(w.s)
					if round%3 == 1 && w.Path() != AwareMPI {
						p = must1(w.Hold(w.s))(t)
					}
					switch {
					case round%3 < 2:
						commtest.Must(t, w.SendRecv(p, y.at(0), n, 1-c.rank, x.at(0), n, 1-c.rank, elem.Int32))
					case c.rank == 0: // nothing comes back that the stream would wait for
						commtest.Must(t, w.Send(p, x.at(0), n, elem.Int32, 1))
					default:
						commtest.Must(t, w.Recv(p, y.at(0), n, elem.Int32, 0))
					}
					commtest.Must(t, w.s.Fill(x.at(0), 4, 77, n))
					commtest.Must(t, w.s.Copy(got.at(round*n), y.at(0), 4*n))
				}
				for i := range sent {
					sent[i] = int32(2*i + c.rank)
					if round := i / n; c.rank == 0 && round%3 == 2 { // it holds what came before
						sent[i] = sent[i-n]
					}
				}
				got.Same(t, sent, "SendRecv")
				in.free(t)
				x.free(t)
				y.free(t)
			}
		})
	})
}
