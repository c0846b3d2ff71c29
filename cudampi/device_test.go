package cudampi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/fakelib"
)

// These tests run on the double of libcuda, whose memory several processes share; the kernels run on the host, from the
// same source. With SPMDTEST_DEVICE=cuda they run on the GPUs of this machine, of which ranks may share one.

func onGPU() bool { return os.Getenv("SPMDTEST_DEVICE") == "cuda" }

func needsDouble(t *testing.T) {
	if onGPU() {
		t.Skip("injects what only the double of libcuda does")
	}
}

// onDevices is onRanks with a device on each rank. env is for the double, beside what all tests need.
func onDevices(t *testing.T, ranks []int, env map[string]string, fn func(t *testing.T, c *Comm, d *cuda.Device)) {
	t.Helper()
	const ready = "LOCKSTEP_CUDAMPI_DOUBLE"
	if !onGPU() && os.Getenv(ready) == "" { // not in the processes that mpirun starts
		if _, err := exec.LookPath("g++"); err != nil {
			t.Skip("the kernels are compiled for the host by g++: " + err.Error())
		}
		dir := double(t)
		t.Setenv("FAKECUDA_KERNELS", filepath.Join(dir, "libemulate.so"))
		path := dir
		if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
			path += ":" + old
		}
		t.Setenv("LD_LIBRARY_PATH", path)
		t.Setenv("FAKECUDA_SHARED", "1")
		t.Setenv("FAKECUDA_DEVICES", "4")
		t.Setenv(awareEnv, "no")
		for k, v := range env {
			t.Setenv(k, v)
		}
		t.Setenv(ready, "1")
		defer os.Unsetenv(ready)
	}
	if !onGPU() {
		compile = func(int) ([]byte, error) { return []byte("image"), nil }
		compiler = compile
	}
	onRanks(t, ranks, func(t *testing.T, c *Comm) {
		d := must1(cuda.Open(c.rank % must1(cuda.Count())(t)))(t)
		fn(t, c, d)
		commtest.Must(t, d.Close())
	})
}

// doubles is where the libraries are, which TestMain removes.
var doubles string

// double builds the libraries once.
func double(t *testing.T) string {
	t.Helper()
	if doubles == "" {
		dir, err := os.MkdirTemp("", "cudampi-double")
		commtest.Must(t, err)
		doubles = dir
		fakelib.CUDA(t, dir)
		fakelib.Build(t, dir, "libemulate.so", "-std=c++14", "-Wno-unknown-pragmas", filepath.Join("testdata", "emulate.cc"))
	}
	return doubles
}

// small makes every chunk and scratch memory small until the test ends, so that a few elements are many steps.
func small(t *testing.T) {
	chunk, relay, message, least, most := chunkBytes, relayBytes, messageBytes, smallBytes, smallMessage
	direct, room, peers, atOnce, host, device := directMin, directRoom, peerRoom, peersAtOnce, hostRings, deviceRings
	t.Cleanup(func() {
		chunkBytes, relayBytes, messageBytes, smallBytes, smallMessage = chunk, relay, message, least, most
		directMin, directRoom, peerRoom, peersAtOnce, hostRings, deviceRings = direct, room, peers, atOnce, host, device
	})
	chunkBytes, relayBytes, messageBytes = 1024, 1024, 512
	smallBytes, smallMessage, directMin, directRoom, peerRoom, peersAtOnce = 64, 64, 256, 16<<10, 4096, 64
	hostRings, deviceRings = ringShape{3 * 2048, 512, 256, 256}, ringShape{3 * 4096, 1024, 256, 512}
}

// compiler is what compile is but where a way does without.
var compiler = compile

// way is a DeviceComm, how it works, and the stream that the test uses it on.
type way struct {
	name string
	*DeviceComm
	s *cuda.Stream
}

// everyWay calls fn with each way to carry out the calls of a Comm.
func everyWay(t *testing.T, c *Comm, d *cuda.Device, fn func(t *testing.T, w way)) {
	t.Helper()
	most := mostShared
	defer func() { mostShared, compile = most, compiler }()
	for _, v := range []struct {
		name   string
		shared int
		path   Path
		kernel bool
	}{{"segment", segmentRanks, Staged, true}, {"copies", segmentRanks, Staged, false}, {"relay", 0, Staged, false},
		{"aware", segmentRanks, AwareMPI, true}, {"peer", segmentRanks, Peer, true}} {
		if a, err := CUDAAware(); onGPU() && v.path == AwareMPI && (err != nil || !a.Yes) {
			continue // it would crash
		}
		mostShared, compile = v.shared, compiler
		if !v.kernel {
			compile = func(int) ([]byte, error) { return nil, errors.New("no compiler") }
		}
		k, err := c.OnDevice(d, DeviceConfig{Path: v.path})
		commtest.Must(t, err)
		if want := v.path; k.Path() != want && c.size > 1 || k.Reason() == "" {
			t.Fatalf("%s: path %v, %q", v.name, k.Path(), k.Reason())
		}
		if (k.seg != nil) != (v.shared > 0 && c.size > 1) {
			t.Fatalf("%s: a segment is there: %v (%s)", v.name, k.seg != nil, k.Reason())
		}
		if got, want := k.small != nil, k.seg != nil && v.kernel && v.path != Peer; got != want && !onGPU() {
			t.Fatalf("%s: small all-reduces have a kernel: %v (%s)", v.name, got, k.Reason())
		}
		if got, want := k.rings != nil, k.seg != nil && v.path != AwareMPI; got != want {
			t.Fatalf("%s: messages have rings: %v (%s)", v.name, got, k.Reason())
		}
		s, err := d.NewStream(0)
		commtest.Must(t, err)
		fn(t, way{v.name, k, s})
		commtest.Must(t, s.Synchronize())
		commtest.Must(t, s.Close())
		commtest.Must(t, k.Close())
		commtest.Must(t, k.Close())
	}
}

// onDevice is n elements in device memory between commtest.Guards, and host memory to set and see them.
type onDevice[T elem.Elem] struct {
	host commtest.Memory[T]
	mem  unsafe.Pointer
	way  way
}

func device[T elem.Elem](t *testing.T, w way, n int) *onDevice[T] {
	t.Helper()
	b := &onDevice[T]{host: commtest.Alloc[T](n), way: w}
	var err error
	b.mem, err = w.dev.Malloc(len(b.host.All) * elem.Of[T]().Size())
	commtest.Must(t, err)
	b.move(t, true)
	return b
}

func deviceFilled[T elem.Elem](t *testing.T, w way, values []T) *onDevice[T] {
	t.Helper()
	b := device[T](t, w, len(values))
	copy(b.host.Data(), values)
	b.move(t, true)
	return b
}

// move goes through pinned memory, in stream order; back, it waits.
func (b *onDevice[T]) move(t *testing.T, in bool) {
	t.Helper()
	bytes := len(b.host.All) * elem.Of[T]().Size()
	pinned, err := b.way.dev.MallocHost(bytes)
	commtest.Must(t, err)
	all := unsafe.Slice((*T)(pinned), len(b.host.All))
	if in {
		copy(all, b.host.All)
		commtest.Must(t, b.way.s.Copy(b.mem, pinned, bytes))
	} else {
		commtest.Must(t, b.way.s.Copy(pinned, b.mem, bytes))
		commtest.Must(t, b.way.s.Synchronize())
		copy(b.host.All, all)
	}
	commtest.Must(t, b.way.dev.FreeHost(pinned)) // waits, as the driver does
}

// at is the address of element i.
func (b *onDevice[T]) at(i int) unsafe.Pointer {
	return unsafe.Add(b.mem, (commtest.Guards+i)*elem.Of[T]().Size())
}

// same checks the memory and frees it.
func (b *onDevice[T]) Same(t *testing.T, want []T, what string) {
	t.Helper()
	b.move(t, false)
	b.host.Same(t, b.way.c, want, "%s, %s", b.way.name, what)
	commtest.Must(t, b.way.dev.Free(b.mem))
}

func (b *onDevice[T]) free(t *testing.T) { t.Helper(); commtest.Must(t, b.way.dev.Free(b.mem)) }

// deviceReductions does all reductions of n elements on each rank, out of place and in place.
func deviceReductions[T elem.Elem](t *testing.T, w way, n int, ops ...elem.Op) {
	t.Helper()
	ty, c, p := elem.Of[T](), w.c, At(w.s)
	root := c.size - 1
	for _, op := range ops {
		what := fmt.Sprintf("%v of %d", op, n)
		want, whole := commtest.Reduced[T](c.size, n, op), commtest.Reduced[T](c.size, n*c.size, op)
		in, all := commtest.Input[T](c.rank, n), commtest.Input[T](c.rank, n*c.size)
		own := whole[c.rank*n : (c.rank+1)*n]

		src, dst := deviceFilled(t, w, in), device[T](t, w, n)
		commtest.Must(t, w.AllReduce(p, dst.at(0), src.at(0), n, ty, op))
		dst.Same(t, want, "AllReduce "+what)
		src.Same(t, in, "src of AllReduce "+what)
		same := deviceFilled(t, w, in)
		commtest.Must(t, w.AllReduce(p, same.at(0), same.at(0), n, ty, op))
		same.Same(t, want, "AllReduce in place "+what)

		src, dst = deviceFilled(t, w, in), device[T](t, w, n)
		commtest.Must(t, w.Reduce(p, dst.at(0), src.at(0), n, ty, op, root))
		if c.rank == root {
			dst.Same(t, want, "Reduce "+what)
		} else {
			dst.Same(t, commtest.Alloc[T](n).Data(), "dst of Reduce elsewhere "+what)
		}
		src.Same(t, in, "src of Reduce "+what)

		src, dst = deviceFilled(t, w, all), device[T](t, w, n)
		commtest.Must(t, w.ReduceScatter(p, dst.at(0), src.at(0), n, ty, op))
		dst.Same(t, own, "ReduceScatter "+what)
		commtest.Must(t, w.ReduceScatter(p, src.at(c.rank*n), src.at(0), n, ty, op))
		copy(all[c.rank*n:], own)
		src.Same(t, all, "ReduceScatter in place "+what)
	}
	if n == 0 {
		return
	}
	counts, total := ragged(c.size, n)
	whole := commtest.Reduced[T](c.size, total, elem.Sum)
	off := parts{counts: counts}.offset(c.rank)
	src, dst := deviceFilled(t, w, commtest.Input[T](c.rank, total)), device[T](t, w, counts[c.rank])
	commtest.Must(t, w.ReduceScatterV(p, dst.at(0), src.at(0), counts, ty, elem.Sum))
	dst.Same(t, whole[off:off+counts[c.rank]], fmt.Sprintf("ReduceScatterV of %v", counts))
	src.free(t)
}

// ragged are counts around n, one of them none.
func ragged(size, n int) (counts []int, total int) {
	counts = make([]int, size)
	for r := range counts {
		counts[r] = n + r
		if r == 1 {
			counts[r] = 0
		}
		total += counts[r]
	}
	return counts, total
}

// joined is the input of all ranks, one after the other.
func joined[T elem.Elem](counts []int) []T {
	var all []T
	for r, n := range counts {
		all = append(all, commtest.Input[T](r, n)...)
	}
	return all
}

// deviceMoves does all collectives that compute nothing, for each number of elements on each rank.
func deviceMoves[T elem.Elem](t *testing.T, w way, n int) {
	t.Helper()
	ty, c, p := elem.Of[T](), w.c, At(w.s)
	root := c.size - 1
	what := func(name string) string { return fmt.Sprintf("%s of %d", name, n) }
	even := make([]int, c.size)
	for r := range even {
		even[r] = n
	}
	for _, counts := range [][]int{nil, func() []int { u, _ := ragged(c.size, n); return u }()} {
		v, lens := "", even
		if counts != nil {
			v, lens = "V", counts
		}
		ps := parts{counts: lens}
		own, total, off := lens[c.rank], ps.offset(c.size), ps.offset(c.rank)
		everything, mine := joined[T](lens), commtest.Input[T](c.rank, own)
		untouched := commtest.Alloc[T](total).Data()

		src, dst := deviceFilled(t, w, mine), device[T](t, w, total)
		inPlace := device[T](t, w, total)
		copy(inPlace.host.Data()[off:], mine)
		inPlace.move(t, true)
		gathered, gatherDst := device[T](t, w, total), untouched
		if c.rank == root {
			gatherDst = everything
		}
		if counts == nil {
			commtest.Must(t, w.AllGather(p, dst.at(0), src.at(0), n, ty))
			commtest.Must(t, w.AllGather(p, inPlace.at(0), inPlace.at(off), n, ty))
			commtest.Must(t, w.Gather(p, gathered.at(0), src.at(0), n, ty, root))
		} else {
			commtest.Must(t, w.AllGatherV(p, dst.at(0), src.at(0), counts, ty))
			commtest.Must(t, w.AllGatherV(p, inPlace.at(0), inPlace.at(off), counts, ty))
			commtest.Must(t, w.GatherV(p, gathered.at(0), src.at(0), counts, ty, root))
		}
		dst.Same(t, everything, what("AllGather"+v))
		inPlace.Same(t, everything, what("AllGather in place"+v))
		gathered.Same(t, gatherDst, what("Gather"+v))
		src.Same(t, mine, what("src of Gather"+v))

		src, dst = deviceFilled(t, w, commtest.Input[T](c.rank, total)), device[T](t, w, own)
		if counts == nil {
			commtest.Must(t, w.Scatter(p, dst.at(0), src.at(0), n, ty, root))
		} else {
			commtest.Must(t, w.ScatterV(p, dst.at(0), src.at(0), counts, ty, root))
		}
		dst.Same(t, commtest.Input[T](root, total)[off:off+own], what("Scatter"+v))
		src.Same(t, commtest.Input[T](c.rank, total), what("src of Scatter"+v))
	}

	buf := deviceFilled(t, w, commtest.Input[T](c.rank, n))
	commtest.Must(t, w.Broadcast(p, buf.at(0), n, ty, root))
	buf.Same(t, commtest.Input[T](root, n), what("Broadcast"))

	var across []T
	for r := range c.size {
		across = append(across, commtest.Input[T](r, n*c.size)[c.rank*n:(c.rank+1)*n]...)
	}
	src, dst := deviceFilled(t, w, commtest.Input[T](c.rank, n*c.size)), device[T](t, w, n*c.size)
	commtest.Must(t, w.AllToAll(p, dst.at(0), src.at(0), n, ty))
	dst.Same(t, across, what("AllToAll"))
	commtest.Must(t, w.AllToAll(p, src.at(0), src.at(0), n, ty))
	src.Same(t, across, what("AllToAll in place"))

	// Rank r sends n+r+q elements to rank q, and nothing to the one before it.
	count := func(from, to int) int {
		if c.size > 1 && (to+1)%c.size == from {
			return 0
		}
		return n + from + to
	}
	send, recv := make([]int, c.size), make([]int, c.size)
	across = nil
	for r := range c.size {
		send[r], recv[r] = count(c.rank, r), count(r, c.rank)
		theirs := make([]int, c.size)
		for q := range theirs {
			theirs[q] = count(r, q)
		}
		ps := parts{counts: theirs}
		all := commtest.Input[T](r, ps.offset(c.size))
		across = append(across, all[ps.offset(c.rank):ps.offset(c.rank)+recv[r]]...)
	}
	src, dst = deviceFilled(t, w, commtest.Input[T](c.rank, parts{counts: send}.offset(c.size))), device[T](t, w, len(across))
	commtest.Must(t, w.AllToAllV(p, dst.at(0), recv, src.at(0), send, ty))
	dst.Same(t, across, what("AllToAllV"))
	src.free(t)
}

// deviceMessages does point to point: round a ring, and everyone with everyone, itself included, twice.
func deviceMessages[T elem.Elem](t *testing.T, w way, n int) {
	t.Helper()
	ty, c, p := elem.Of[T](), w.c, At(w.s)
	next, prev := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
	src, dst := deviceFilled(t, w, commtest.Input[T](c.rank, n+c.rank)), device[T](t, w, n+prev)
	commtest.Must(t, w.SendRecv(p, dst.at(0), n+prev, prev, src.at(0), n+c.rank, next, ty))
	dst.Same(t, commtest.Input[T](prev, n+prev), "SendRecv")
	src.Same(t, commtest.Input[T](c.rank, n+c.rank), "src of SendRecv")

	if c.size > 1 && c.rank < 2 { // one sends and receives at once, the other one after the other
		a, b := deviceFilled(t, w, commtest.Input[T](c.rank, n)), device[T](t, w, n)
		if c.rank == 0 {
			commtest.Must(t, w.Exchange(p, Message{a.at(0), n, ty, 1, false}, Message{b.at(0), n, ty, 1, true}))
		} else {
			commtest.Must(t, w.Recv(p, b.at(0), n, ty, 0))
			commtest.Must(t, w.Send(p, a.at(0), n, ty, 0))
		}
		a.free(t)
		b.Same(t, commtest.Input[T](1-c.rank, n), "Recv")
	}

	var list []Message
	var out, in []*onDevice[T]
	for k := range 2 {
		for r := range c.size {
			a, b := deviceFilled(t, w, commtest.Input[T](10*k+c.rank, n+k)), device[T](t, w, n+k)
			out, in = append(out, a), append(in, b)
			list = append(list, Message{a.at(0), n + k, ty, r, false}, Message{b.at(0), n + k, ty, r, true})
		}
	}
	commtest.Must(t, w.Exchange(p, list...))
	for i := range in {
		out[i].free(t)
		in[i].Same(t, commtest.Input[T](10*(i/c.size)+i%c.size, n+i/c.size), "Exchange")
	}
}

var allOps = []elem.Op{elem.Sum, elem.Prod, elem.Min, elem.Max, elem.Avg}

func TestDeviceCollectives(t *testing.T) {
	onDevices(t, counts, nil, func(t *testing.T, c *Comm, d *cuda.Device) {
		small(t)
		everyWay(t, c, d, func(t *testing.T, w way) {
			for _, n := range []int{0, 1, 7} {
				deviceMoves[int8](t, w, n)
				deviceMessages[int64](t, w, n)
				deviceReductions[float32](t, w, n, allOps...)
			}
			chunk := chunkBytes / 4 // elements, also where parts get less
			for _, n := range []int{chunk / c.size, chunk - 1, chunk, chunk + 1, 3*chunk + 5} {
				deviceMoves[float32](t, w, n)
				deviceMessages[float32](t, w, n)
				deviceReductions[float32](t, w, n, elem.Sum)
			}
			const n = 300
			deviceReductions[int8](t, w, n, allOps...)
			deviceReductions[uint8](t, w, n, allOps...)
			deviceReductions[int32](t, w, n, allOps...)
			deviceReductions[uint32](t, w, n, allOps...)
			deviceReductions[int64](t, w, n, allOps...)
			deviceReductions[uint64](t, w, n, allOps...)
			deviceReductions[elem.F16](t, w, n, allOps...)
			deviceReductions[elem.BF16](t, w, n, allOps...)
			deviceReductions[float64](t, w, n, allOps...)
		})
	})
}
