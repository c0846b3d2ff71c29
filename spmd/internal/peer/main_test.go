package peer

import (
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/shm"
)

// TestMain has the kernels be those that the double knows.
func TestMain(m *testing.M) {
	if !commtest.OnGPU() {
		Compile = func(string, int) ([]byte, error) { return []byte("image"), nil }
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

// site is where a rank of a test makes its calls.
type site struct {
	c   *shm.NodeComm
	dev *cuda.Device
	s   *cuda.Stream
}

func newSite(t *testing.T, c *shm.NodeComm, d *cuda.Device) site {
	t.Helper()
	return site{c, d, commtest.Must1(d.NewStream(0))(t)}
}

// buffer is n elements in device memory between guards, and host memory to set and see them.
type buffer[T elem.Elem] struct {
	host commtest.Memory[T]
	mem  unsafe.Pointer
	at   site
}

// bytes is the size of the device memory.
func (b *buffer[T]) bytes() int { return len(b.host.All) * elem.Of[T]().Size() }

// alloc returns n elements between guards.
func alloc[T elem.Elem](t *testing.T, at site, n int) *buffer[T] {
	t.Helper()
	return filled(t, at, commtest.Alloc[T](n).Data())
}

// filled returns the values between guards.
func filled[T elem.Elem](t *testing.T, at site, values []T) *buffer[T] {
	t.Helper()
	b := &buffer[T]{host: commtest.Alloc[T](len(values)), at: at}
	copy(b.host.Data(), values)
	b.mem = commtest.Must1(at.dev.Malloc(b.bytes()))(t)
	b.move(t, true)
	return b
}

// move goes through pinned memory, in stream order, and waits.
func (b *buffer[T]) move(t *testing.T, in bool) {
	t.Helper()
	pinned := commtest.Must1(b.at.dev.MallocHost(b.bytes()))(t)
	all := unsafe.Slice((*T)(pinned), len(b.host.All))
	if in {
		copy(all, b.host.All)
		commtest.Must(t, b.at.s.Copy(b.mem, pinned, b.bytes()))
	} else {
		commtest.Must(t, b.at.s.Copy(pinned, b.mem, b.bytes()))
	}
	commtest.Must(t, b.at.s.Synchronize())
	if !in {
		copy(b.host.All, all)
	}
	commtest.Must(t, b.at.dev.FreeHost(pinned))
}

// ptr is the address of element i.
func (b *buffer[T]) ptr(i int) unsafe.Pointer {
	return unsafe.Add(b.mem, (commtest.Guards+i)*elem.Of[T]().Size())
}

// same checks the memory and frees it.
func (b *buffer[T]) same(t *testing.T, want []T, what string) {
	t.Helper()
	b.move(t, false)
	b.host.Same(t, b.at.c, want, "%s", what)
	b.free(t)
}

func (b *buffer[T]) free(t *testing.T) {
	t.Helper()
	commtest.Must(t, b.at.s.Synchronize())
	commtest.Must(t, b.at.dev.Free(b.mem))
}

func sends[T elem.Elem](b *buffer[T], at, n, to int) Message {
	return Message{Buf: b.ptr(at), N: n, Type: elem.Of[T](), Peer: to}
}

func receives[T elem.Elem](b *buffer[T], at, n, from int) Message {
	return Message{Buf: b.ptr(at), N: n, Type: elem.Of[T](), Peer: from, Recv: true}
}
