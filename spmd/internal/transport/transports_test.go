package transport_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/shm"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/carriers"
)

// TestMain has the kernels of package peer be those that the double knows.
func TestMain(m *testing.M) {
	if !commtest.OnGPU() {
		peer.Compile = func(string, int) ([]byte, error) { return []byte("image"), nil }
	}
	commtest.Main(m)
}

// onDevices is commtest.OnDevices with ranks that share memory of the host.
func onDevices(t *testing.T, ranks []int, env map[string]string,
	fn func(t *testing.T, c *shm.NodeComm, d *cuda.Device)) {
	t.Helper()
	commtest.OnDevices(t, ranks, env, func(t *testing.T, base *cudampi.Comm, d *cuda.Device) {
		c, err := shm.Share(base)
		commtest.Must(t, err)
		fn(t, c, d)
		commtest.Must(t, c.Close())
	})
}

var ranks = []int{1, 2, 3}

// site is where a backend opens a transport.
func site(h transport.Host, dev *cuda.Device, word unsafe.Pointer) transport.Site {
	log := zerolog.Nop()
	return transport.Site{Host: h, Dev: dev, Word: word, Nodes: 1, Log: &log,
		Begin: func(string) func() { return func() {} }}
}

// open has a backend open the transport of a side, walks all calls, and closes it.
func open(t *testing.T, b transport.Backend, h transport.Host, dev *cuda.Device) {
	t.Helper()
	onDevice(t, h, dev, func(s *side, word unsafe.Pointer) {
		by, err := b.Open(site(h, dev, word))
		commtest.Must(t, err)
		s.by = by
		walk(s)
		commtest.Must(t, by.Close())
	})
}

// TestMPI is host memory through MPI, and through memory that the ranks share.
func TestMPI(t *testing.T) {
	onDevices(t, ranks, nil, func(t *testing.T, c *shm.NodeComm, _ *cuda.Device) {
		walk(onHost(t, carriers.NewMPI(c)))
		hosts(t, carriers.NewMPI(c))
	})
}

// TestAware is an MPI that takes device memory: that of the double is the host's.
// One that does not would crash.
func TestAware(t *testing.T) {
	onDevices(t, ranks, map[string]string{smallPieces: "yes"},
		func(t *testing.T, c *shm.NodeComm, dev *cuda.Device) {
			if said, err := cudampi.CUDAAware(); commtest.OnGPU() && !said.Yes {
				t.Skip(said.Reason, err)
			}
			disagree(t, carriers.AwareBackend, carriers.NewMPI(c), dev)
		})
}

// TestPeer is kernels between devices.
func TestPeer(t *testing.T) {
	onDevices(t, ranks, nil, func(t *testing.T, c *shm.NodeComm, dev *cuda.Device) {
		p, err := peer.Open(c, dev, 4096)
		if err != nil && commtest.OnGPU() {
			t.Skip(err) // ranks share a device
		}
		commtest.Must(t, err)
		onDevice(t, carriers.NewMPI(c), dev, func(s *side, _ unsafe.Pointer) {
			s.by = carriers.NewPeerKernels(p, carriers.AllMessages)
			each[int8](s, 2047) // around blocks
			each[int8](s, 2049)
			each[elem.F16](s, 4097) // and the scratch memory
		})
		commtest.Must(t, p.Close())
		open(t, carriers.PeersBackend, carriers.NewMPI(c), dev)
	})
}

// TestNCCL is device memory through NCCL, of ranks that are goroutines: the
// double moves it between them.
func TestNCCL(t *testing.T) {
	inDoubles(t, func(t *testing.T, h *transport.Member, dev *cuda.Device) { open(t, carriers.NCCLBackend, h, dev) })
}

// TestStaged is device memory through that of the host, where pieces are short: of ranks that are
// goroutines, on one node and on several.
func TestStaged(t *testing.T) {
	inDoubles(t, func(t *testing.T, h *transport.Member, dev *cuda.Device) {
		disagree(t, carriers.StagedBackend, h, dev)
		for node := range h.Size() - 1 {
			disagree(t, carriers.StagedBackend, onNodes{h, node}, dev)
		}
	}, smallPieces+"=yes")
}

// onNodes is a communicator of ranks of which those up to last are on one
// node, and each other on its own.
type onNodes struct {
	*transport.Member
	last int
}

func (h onNodes) Pin(dev *cuda.Device, bytes int) (*transport.Pinned, error) {
	p, err := h.Member.Pin(dev, bytes)
	if err == nil {
		for r := range p.Parts {
			if r != h.Rank() && max(r, h.Rank()) > h.last {
				p.Parts[r] = nil
			}
		}
	}
	return p, err
}

// TestStagedLost is a rank that returns while another waits for it, in each place where that waits.
func TestStagedLost(t *testing.T) {
	inDoubles(t, func(t *testing.T, h *transport.Member, dev *cuda.Device) {
		if h.Size() != 2 {
			return
		}
		onDevice(t, h, dev, func(s *side, word unsafe.Pointer) {
			by, err := carriers.OpenStaged(site(h, dev, word))
			commtest.Must(t, err)
			if h.Rank() == 1 {
				return
			}
			call := coll.Call{Kind: coll.AllReduce, Type: elem.Int32, Dst: s.mem, Src: s.work, N: 500}
			for _, err := range []error{
				by.Make(s.q.Stream(), s.q.Stream(), &call, carriers.Agreed),
				by.Do(s.q, coll.Call{Kind: coll.Recv, Type: elem.Int32, Dst: s.mem, N: 500, Root: 1}),
				by.Do(s.q, coll.Call{Kind: coll.Send, Type: elem.Int32, Src: s.mem, N: 1000, Root: 1}),
			} {
				testkit.Refused(t, err, "rank 1 has returned")
			}
		})
	}, smallPieces+"=yes")
}

// TestStagedByMPI is the same of ranks that are processes.
func TestStagedByMPI(t *testing.T) {
	onDevices(t, ranks, map[string]string{smallPieces: "yes"},
		func(t *testing.T, c *shm.NodeComm, dev *cuda.Device) {
			disagree(t, carriers.StagedBackend, carriers.NewMPI(c), dev)
		})
}

// smallPieces is the environment variable that has many pieces of what is staged.
const smallPieces = "LOCKSTEP_TEST_SMALL_PIECES"

func init() {
	if os.Getenv(smallPieces) != "" {
		carriers.StagedSizes.Piece, carriers.StagedSizes.Alone, carriers.StagedSizes.Short = 1024, 100, 128
		carriers.StagedSizes.Chunk = 512
		carriers.AwareSizes.Direct, carriers.AwareSizes.Room = 256, 16<<10
	}
}

// disagree makes all calls, and then some that ranks do not agree about: all learn it, and go on.
func disagree(t *testing.T, b transport.Backend, h transport.Host, dev *cuda.Device) {
	onDevice(t, h, dev, func(s *side, word unsafe.Pointer) {
		by, err := b.Open(site(h, dev, word))
		commtest.Must(t, err)
		s.by = by
		if why, _, err := by.Why(); err != nil || strings.Contains(why, "do not share") {
			t.Error(why, err)
		}
		walk(s)
		if odd := h.Rank() / 2; h.Size() == 3 { // 1 on the last rank
			for _, c := range []coll.Call{
				{Kind: coll.AllReduce, Type: elem.Float32, N: 1000 + odd},
				{Kind: coll.AllReduce, Type: elem.Float32, N: 3 + 3000*odd},
				{Kind: coll.AllReduce, Type: elem.Float32, N: 3, Op: elem.Op(odd)},
				{Kind: coll.AllReduce, Type: elem.Float32 - elem.Type(odd), N: 3},
				{Kind: coll.Broadcast, Type: elem.Float32, N: 500, Root: int32(odd)},
				{Kind: coll.AllGatherV, Type: elem.Float32, Counts: []int{600 + odd, 601 - odd, 9}},
			} {
				c.Dst, c.Src = s.mem, s.work
				if err := by.Do(s.q, c); !errors.Is(err, ccall.ErrMismatch) ||
					!strings.Contains(err.Error(), "brought "+c.Kind.String()) {
					t.Errorf("rank %d, %v: %v", h.Rank(), &c, err)
				}
			}
			type message struct {
				n int
				t elem.Type
			}
			other := [][2]message{} // sent, and expected
			for _, n := range [][2]int{{1000, 1}, {1000, 1999}, {8, 5}, {8, 0}, {0, 8}} {
				other = append(other, [2]message{{n[0], elem.Int32}, {n[1], elem.Int32}})
			}
			for i := range elem.Type(elem.Types * elem.Types) {
				if a, b := i/elem.Types, i%elem.Types; a != b {
					other = append(other, [2]message{{48 / a.Size(), a}, {48 / b.Size(), b}})
				}
			}
			for _, m := range other {
				sent, its := m[0], m[1]
				switch h.Rank() {
				case 0:
					commtest.Must(t, by.Do(s.q, coll.Call{Kind: coll.Send, Type: sent.t, Src: s.mem, N: sent.n,
						Root: 1}))
				case 1:
					err := by.Do(s.q, coll.Call{Kind: coll.Recv, Type: its.t, Dst: s.mem, N: its.n})
					if want := fmt.Sprintf("%d %v elements", its.n, its.t); err == nil ||
						!strings.Contains(err.Error(), "message from rank 0 has ") ||
						(b == carriers.StagedBackend || sent.t != its.t) && !strings.Contains(err.Error(), want) {
						t.Errorf("%v instead of %s", err, want)
					}
				}
			}
			each[float32](s, 301)
		}
		commtest.Must(t, by.Close())
		commtest.Must(t, by.Close())
	})
}

// TestStagedHeld is the same where streams run beside the host, and wait
// for the calls that it makes.
func TestStagedHeld(t *testing.T) {
	inDoubles(t, func(t *testing.T, h *transport.Member, dev *cuda.Device) {
		if h.Size() != 3 {
			return
		}
		onDevice(t, h, dev, func(s *side, word unsafe.Pointer) {
			by, err := carriers.StagedBackend.Open(site(h, dev, word))
			commtest.Must(t, err)
			s.by, s.q = by, held{s.q.Stream()}
			each[int32](s, 7)
			left := s.q.Stream()
			commtest.Must(t, by.Do(forgotten{left}, coll.Call{Kind: coll.Barrier}))
			commtest.Must(t, left.Synchronize())
			commtest.Must(t, by.Close())
		})
	}, "FAKECUDA_DELAY=20")
}

// held is a queue whose stream waits while a call is made.
type held struct{ s *cuda.Stream }

func (q held) Stream() *cuda.Stream { return q.s }

func (q held) Hand(j transport.HostJob) error {
	if err := j.Hold(); err != nil {
		return err
	}
	if done, err := q.s.Query(); done || err != nil {
		return fmt.Errorf("the stream of a held call is done: %v, %w", done, err)
	}
	return j.Run()
}

// forgotten is one whose calls are given up once the stream waits for them.
type forgotten struct{ s *cuda.Stream }

func (q forgotten) Stream() *cuda.Stream { return q.s }

func (q forgotten) Hand(j transport.HostJob) error { return errors.Join(j.Hold(), j.Release()) }

// TestSelf is the device memory of one rank.
func TestSelf(t *testing.T) {
	inDoubles(t, func(t *testing.T, h *transport.Member, dev *cuda.Device) {
		if h.Size() == 1 {
			onDevice(t, h, dev, func(s *side, _ unsafe.Pointer) {
				s.by = transport.Self{}
				walk(s)
			})
		}
	})
}

// TestHost is what ranks that are goroutines agree by.
func TestHost(t *testing.T) {
	for _, n := range ranks {
		commtest.Must(t, transport.RunTeam(n, func(c *transport.Member) error { hosts(t, c); return nil }))
	}
}

// inDoubles runs fn on ranks that are goroutines of a process with the doubles of CUDA
// and NCCL, each with a device.
func inDoubles(t *testing.T, fn func(t *testing.T, h *transport.Member, dev *cuda.Device), env ...string) {
	t.Helper()
	testkit.RunWithLibraries(t, func(dir string) {
		testkit.BuildCUDA(t, dir)
		testkit.BuildLibrary(t, dir, "libnccl.so.2", "-DMOVES",
			filepath.Join("..", "..", "..", "nccl", "testdata", "fakenccl.c"))
	}, append(env, "FAKECUDA_DEVICES=3"), func(t *testing.T) {
		for _, n := range ranks {
			commtest.Must(t, transport.RunTeam(n, func(c *transport.Member) error {
				dev, err := cuda.Open(c.Rank())
				if err != nil {
					return err
				}
				fn(t, c, dev)
				return dev.Close()
			}))
		}
	})
}
