package cuda

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// The tests of this file need a GPU.

// held keeps the context of the GPU until the process ends: making one takes longer than most
// tests.
var held = sync.OnceValue(func() error {
	_, err := Open(0)
	return err
})

func openGPU(t *testing.T) *Device {
	t.Helper()
	if err := Load(); err != nil {
		t.Skip(err)
	}
	must(t, held())
	d := try(Open(0))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func newStream(t *testing.T, d *Device) *Stream {
	t.Helper()
	s := try(d.NewStream(0))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// device returns n zeroed words of device memory, and pinned returns n words of the host's.
func device(t *testing.T, d *Device, s *Stream, n int) unsafe.Pointer {
	t.Helper()
	p := try(d.Malloc(8 * n))(t)
	must(t, s.Fill(p, 4, 0, 2*n))
	t.Cleanup(func() {
		if err := d.Free(p); err != nil {
			t.Error(err)
		}
	})
	return p
}

func pinned[T any](t *testing.T, d *Device, n int) []T {
	t.Helper()
	p := try(d.MallocHost(n * int(unsafe.Sizeof(*new(T)))))(t)
	t.Cleanup(func() {
		if err := d.FreeHost(p); err != nil {
			t.Error(err)
		}
	})
	return unsafe.Slice((*T)(p), n)
}

func at[T any](x []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(x)) }

// hold makes s wait until the function it returns is called.
func hold(t *testing.T, s *Stream) (release func()) {
	t.Helper()
	gate := make(chan bool)
	c := NewCallback(func() { <-gate })
	must(t, s.HostFunc(c))
	open := false
	release = func() {
		if !open {
			open = true
			close(gate)
		}
	}
	t.Cleanup(func() {
		release()
		c.Close()
	})
	return release
}

func TestGPUDevice(t *testing.T) {
	d := openGPU(t)
	major, minor := d.Capability()
	free, total, err := d.MemInfo()
	must(t, err)
	least, greatest := d.Priorities()
	t.Logf("%s %s %s, %d.%d, %d multiprocessors, %d bytes, %d of %d free, priorities %d to %d, driver %d",
		d.Name(), d.UUID(), d.PCI(), major, minor, d.Multiprocessors(), d.Memory(), free, total, least,
		greatest, DriverVersion())
	if d.Name() == "" || major < 5 || d.Multiprocessors() < 1 || d.Memory() < 1<<30 ||
		total > d.Memory() || free > total {
		t.Error("that cannot be")
	}
	if greatest > least || DriverVersion() < oldest {
		t.Error("that cannot be")
	}
	if id := try(UUIDOf(0))(t); id != d.UUID() {
		t.Errorf("UUIDOf(0) is %s", id)
	}
	if list, err := exec.Command("nvidia-smi", "-L").Output(); err != nil {
		t.Logf("the UUID is not compared with nvidia-smi's: %v", err)
	} else if !strings.Contains(string(list), d.UUID()) {
		t.Errorf("nvidia-smi -L lacks %s:\n%s", d.UUID(), list)
	}
	if _, err := os.Stat(filepath.Join("/sys/bus/pci/devices", d.PCI())); err != nil {
		t.Logf("PCI address not found, as in a virtual machine: %v", err)
	}
	if n := try(Count())(t); n < 1 {
		t.Errorf("%d devices", n)
	}
	again := try(Open(0))(t)
	must(t, again.Close())
	must(t, again.Close())
	must(t, d.Synchronize()) // the context is still there
}

// The driver's names are the reference for our table.
func TestGPUNames(t *testing.T) {
	openGPU(t)
	known := 0
	for r := Result(1); r < 1000; r++ {
		name, text := sysErrorText(r)
		if name == "" || strings.Contains(strings.ToLower(name), "unrecognized") {
			continue
		}
		known++
		if ours := r.name(); ours != "" && ours != name {
			t.Errorf("%d: %s, the driver says %s", r, ours, name)
		} else if ours == "" {
			t.Logf("the driver also has %d: %s, %s", r, name, text)
		}
	}
	if known < 80 {
		t.Errorf("the driver names %d results", known)
	}
}

func TestGPUMemory(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	for _, n := range []int{1, 255, 1 << 20} {
		src, dst := pinned[byte](t, d, n), pinned[byte](t, d, n)
		for i := range src {
			src[i], dst[i] = byte(i*7+1), 0
		}
		a, m := try(d.Malloc(n))(t), try(d.MallocManaged(n))(t)
		must(t, s.Copy(a, at(src), n))
		must(t, s.Copy(m, a, n))
		must(t, s.Copy(at(dst), m, n))
		must(t, s.Synchronize())
		if !slices.Equal(src, dst) {
			t.Errorf("%d bytes have changed on their way", n)
		}
		if got := unsafe.Slice((*byte)(m), n); !slices.Equal(src, got) {
			t.Errorf("%d bytes of managed memory are not what was copied there", n)
		}
		must(t, d.Free(a))
		must(t, d.Free(m))
	}
	p, h := device(t, d, s, 4), pinned[byte](t, d, 32)
	for _, size := range []int{1, 2, 4} {
		must(t, s.Fill(p, 1, 0, 32))
		must(t, s.Fill(unsafe.Add(p, 4), size, 0x1122334455667788, 3))
		must(t, s.Copy(at(h), p, 32))
		must(t, s.Synchronize())
		want := make([]byte, 32)
		copy(want[4:], slices.Repeat([]byte{0x88, 0x77, 0x66, 0x55}[:size], 3))
		if !slices.Equal(h, want) {
			t.Errorf("size %d: % x, want % x", size, h, want)
		}
	}
	_, total, err := d.MemInfo()
	must(t, err)
	for _, alloc := range []func(int) (unsafe.Pointer, error){d.Malloc, d.MallocManaged} {
		if _, err := alloc(total + 1); !errors.Is(err, ErrOutOfMemory) ||
			!strings.Contains(err.Error(), "free on GPU 0") {
			t.Errorf("more than there is: %v", err)
		}
	}
	must(t, onFreshThread(func() error {
		p, err := d.Malloc(100)
		if err != nil {
			return err
		}
		return d.Free(p)
	}))
}

// TestGPUManaged: memory keeps its contents wherever it is moved, and whatever is said of it.
func TestGPUManaged(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	const n = 5<<20 + 3
	m := try(d.MallocManaged(n))(t)
	host := unsafe.Slice((*byte)(m), n)
	for _, a := range []Advice{SetReadMostly, UnsetReadMostly, SetPreferredLocation, SetAccessedBy,
		UnsetAccessedBy, UnsetPreferredLocation} {
		must(t, d.Advise(m, n, a, d))
		for i := range host {
			host[i] = byte(i*7 + int(a))
		}
		must(t, s.Prefetch(m, n, d))
		must(t, s.Fill(unsafe.Add(m, 4099), 1, 0, 100))
		must(t, s.Prefetch(unsafe.Add(m, 4099), 100, nil)) // a part, not on a page's edge
		must(t, s.Synchronize())
		for i, got := range host {
			want := byte(i*7 + int(a))
			if i >= 4099 && i < 4199 {
				want = 0
			}
			if got != want {
				t.Fatalf("advice %d: byte %d is %d, want %d", a, i, got, want)
			}
		}
	}
	must(t, d.Advise(m, n, SetPreferredLocation, nil))
	must(t, s.BeginCapture(Relaxed))
	if err := s.Prefetch(m, n, d); err == nil {
		t.Error("a graph holds a prefetch: document and allow it")
	}
	must(t, s.Abandon())
	must(t, d.Free(m))
}

func TestGPUOrder(t *testing.T) {
	d := openGPU(t)
	least, greatest := d.Priorities()
	a, b := try(d.NewStream(least))(t), try(d.NewStream(greatest))(t)
	first, second := try(d.NewEvent())(t), try(d.NewTimedEvent())(t)
	const n = 1 << 16
	p, h := device(t, d, a, n), pinned[uint32](t, d, n)
	must(t, a.Synchronize())

	done := func(want bool) {
		t.Helper()
		for name, query := range map[string]func() (bool, error){
			"stream a": a.Query, "stream b": b.Query, "first": first.Query, "second": second.Query,
			"Spin": func() (bool, error) { return first.Spin(100 * time.Microsecond) },
		} {
			if got, err := query(); got != want || err != nil {
				t.Errorf("%s: done is %v, %v, want %v", name, got, err, want)
			}
		}
	}
	done(true)
	release := hold(t, a)
	must(t, a.Fill(p, 4, 42, n))
	must(t, first.Record(a))
	must(t, b.Wait(first))
	must(t, b.Copy(at(h), p, 4*n))
	must(t, second.Record(b))
	done(false)
	if _, err := second.Elapsed(second); !errors.Is(err, ErrNotReady) {
		t.Errorf("elapsed before it is done: %v", err)
	}
	release()
	must(t, second.Synchronize())
	if h[0] != 42 || h[n-1] != 42 {
		t.Errorf("b did not wait for a: %d, %d", h[0], h[n-1])
	}
	must(t, a.Synchronize())
	done(true)
	if _, err := second.Elapsed(first); !errors.Is(err, ErrInvalidHandle) {
		t.Errorf("elapsed since an event without timing: %v", err)
	}
	if done, err := second.Spin(time.Minute); !done || err != nil {
		t.Errorf("Spin: %v, %v", done, err)
	}
	for range 2 {
		must(t, errors.Join(first.Close(), second.Close(), a.Close(), b.Close()))
	}
}

// The time between two events lies within the host's time round both.
func TestGPUElapsed(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	a, b := try(d.NewTimedEvent())(t), try(d.NewTimedEvent())(t)
	p := device(t, d, s, 1<<22)
	must(t, s.Synchronize())
	start := time.Now()
	must(t, a.Record(s))
	for range 20 {
		must(t, s.Fill(p, 4, 1, 1<<23))
	}
	must(t, b.Record(s))
	must(t, b.Synchronize())
	wall := time.Since(start)
	if dt := try(b.Elapsed(a))(t); dt <= 0 || dt > wall+wall/100+time.Microsecond {
		t.Errorf("elapsed %v of %v", dt, wall)
	}
	must(t, errors.Join(a.Close(), b.Close()))
}

func TestGPUCallback(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	p, h := device(t, d, s, 1), pinned[uint32](t, d, 1)
	var seen []uint32
	c := NewCallback(func() { seen = append(seen, h[0]) })
	for v := range uint64(10) {
		must(t, s.Fill(p, 4, v, 1))
		must(t, s.Copy(at(h), p, 4))
		must(t, s.HostFunc(c))
	}
	must(t, s.Synchronize())
	if want := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(seen, want) {
		t.Errorf("the callback saw %d", seen)
	}
	release := hold(t, s)
	must(t, s.HostFunc(c))
	c.Close() // before the stream comes to it
	release()
	must(t, s.Synchronize())
	if len(seen) != 10 {
		t.Error("a closed callback was called")
	}
}
