package cuda

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda/nvrtc"
)

// The tests of this file need a GPU.

func openGPU(t *testing.T) *Device {
	t.Helper()
	if err := Load(); err != nil {
		t.Skip(err)
	}
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
		d.Name(), d.UUID(), d.PCI(), major, minor, d.Multiprocessors(), d.Memory(), free, total, least, greatest, DriverVersion())
	if d.Name() == "" || major < 5 || d.Multiprocessors() < 1 || d.Memory() < 1<<30 || total > d.Memory() || free > total {
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
		if ours, ok := names[r]; ok && ours != name {
			t.Errorf("%d: %s, the driver says %s", r, ours, name)
		} else if !ok {
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
		if _, err := alloc(total + 1); !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "free on GPU 0") {
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

// TestGPUManaged: what memory holds is the same wherever it is moved, and whatever is said of it.
func TestGPUManaged(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	const n = 5<<20 + 3
	m := try(d.MallocManaged(n))(t)
	host := unsafe.Slice((*byte)(m), n)
	for _, a := range []Advice{SetReadMostly, UnsetReadMostly, SetPreferredLocation, SetAccessedBy, UnsetAccessedBy, UnsetPreferredLocation} {
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
	first, second := try(d.NewEvent(false))(t), try(d.NewEvent(true))(t)
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
	a, b := try(d.NewEvent(true))(t), try(d.NewEvent(true))(t)
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

// ptx has a kernel that stores each of its arguments, and one that adds v to the n words of p.
const ptx = `
.version 7.0
.target sm_80
.address_size 64

.visible .entry widths(.param .u64 p, .param .u8 a, .param .u16 b, .param .u32 c, .param .u64 d, .param .f32 e, .param .f64 f)
{
	.reg .b64 %rd<4>;
	.reg .b32 %r<2>;
	.reg .b16 %rs<3>;
	.reg .f32 %f<2>;
	.reg .f64 %fd<2>;
	ld.param.u64 %rd1, [p];
	cvta.to.global.u64 %rd1, %rd1;
	ld.param.u8 %rs1, [a];
	cvt.u64.u16 %rd2, %rs1;
	st.global.u64 [%rd1], %rd2;
	ld.param.u16 %rs2, [b];
	cvt.u64.u16 %rd2, %rs2;
	st.global.u64 [%rd1+8], %rd2;
	ld.param.u32 %r1, [c];
	cvt.u64.u32 %rd2, %r1;
	st.global.u64 [%rd1+16], %rd2;
	ld.param.u64 %rd2, [d];
	st.global.u64 [%rd1+24], %rd2;
	ld.param.f32 %f1, [e];
	cvt.f64.f32 %fd1, %f1;
	st.global.f64 [%rd1+32], %fd1;
	ld.param.f64 %fd1, [f];
	st.global.f64 [%rd1+40], %fd1;
	ret;
}

.visible .entry add(.param .u64 p, .param .u32 n, .param .u32 v)
{
	.reg .pred %q;
	.reg .b64 %rd<4>;
	.reg .b32 %r<8>;
	ld.param.u64 %rd1, [p];
	ld.param.u32 %r1, [n];
	ld.param.u32 %r2, [v];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.u32 %r6, %r3, %r4, %r5;
	setp.ge.u32 %q, %r6, %r1;
	@%q ret;
	cvta.to.global.u64 %rd1, %rd1;
	mul.wide.u32 %rd2, %r6, 4;
	add.u64 %rd1, %rd1, %rd2;
	ld.global.u32 %r7, [%rd1];
	add.u32 %r7, %r7, %r2;
	st.global.u32 [%rd1], %r7;
	ret;
}
`

func kernel(t *testing.T, d *Device, name string) *Function {
	t.Helper()
	m := try(d.LoadModule([]byte(ptx)))(t)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	f := try(m.Function(name))(t)
	must(t, f.Load())
	return f
}

func TestGPULaunch(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	one := [3]int{1, 1, 1}
	f := kernel(t, d, "widths")
	p, h := device(t, d, s, 6), pinned[uint64](t, d, 6)
	const junk = 0xabcdef0000000000 // above the low bytes, which alone count
	must(t, s.Launch(f, one, one, 0, []uint64{uint64(uintptr(p)), junk | 0xf1, junk | 0xf123, junk&^(1<<40-1) | 0xf1234567,
		0xf123456789abcdef, junk | uint64(math.Float32bits(1.5)), math.Float64bits(-2.5)}))
	must(t, s.Copy(at(h), p, 48))
	must(t, s.Synchronize())
	if want := []uint64{0xf1, 0xf123, 0xf1234567, 0xf123456789abcdef, math.Float64bits(1.5), math.Float64bits(-2.5)}; !slices.Equal(h, want) {
		t.Errorf("%x, want %x", h, want)
	}
	if n := try(f.MaxThreads())(t); n < 32 || n > 1024 {
		t.Errorf("%d threads in a block", n)
	}
	if n := try(f.Registers())(t); n < 1 || n > 255 {
		t.Errorf("%d registers", n)
	}
	must(t, f.SetMaxShared(64<<10))
	must(t, s.Launch(f, one, one, 64<<10, []uint64{uint64(uintptr(p)), 0, 0, 0, 0, 0, 0}))
	must(t, s.Synchronize())
	wantError(t, s.Launch(f, one, [3]int{1025, 1, 1}, 0, make([]uint64, 7)), "cuLaunchKernel", ErrInvalidValue)
	wantError(t, s.Launch(f, [3]int{0, 1, 1}, one, 0, make([]uint64, 7)), "cuLaunchKernel", ErrInvalidValue)

	// Every launch sees its own arguments, though the slice is used again at once.
	add := kernel(t, d, "add")
	const n = 1000
	q, sum := device(t, d, s, n), pinned[uint32](t, d, n)
	args, want := make([]uint64, 3), uint32(0)
	for v := range uint32(50) {
		args[0], args[1], args[2] = uint64(uintptr(q)), n, uint64(v)
		want += v
		must(t, s.Launch(add, [3]int{(n + 255) / 256, 1, 1}, [3]int{256, 1, 1}, 0, args))
	}
	clear(args)
	must(t, s.Copy(at(sum), q, 4*n))
	must(t, s.Synchronize())
	for i, v := range sum {
		if v != want {
			t.Fatalf("element %d is %d, want %d", i, v, want)
		}
	}
}

// early has a kernel that lets the next one start at once, and after a millisecond writes the time; and one to be launched
// early, which writes when it began, and what it has read of the first.
const early = `
static __device__ unsigned long long now() {
	unsigned long long t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}
extern "C" __global__ void first(unsigned long long *p) {
	asm volatile("griddepcontrol.launch_dependents;");
	unsigned long long start = now();
	while (now() - start < 1000000) {}
	p[0] = now();
}
extern "C" __global__ void second(unsigned long long *p) {
	unsigned long long start = now();
	asm volatile("griddepcontrol.wait;" ::: "memory");
	p[1] = start;
	p[2] = p[0];
}
`

func TestGPULaunchEarly(t *testing.T) {
	d := openGPU(t)
	major, minor := d.Capability()
	if !d.early {
		t.Skipf("compute capability %d.%d, driver %d", major, minor, DriverVersion())
	}
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	image := try(nvrtc.Compile("early.cu", early, nvrtc.Options{Capability: 10*major + minor}))(t)
	m := try(d.LoadModule(image))(t)
	first, second := try(m.Function("first"))(t), try(m.Function("second"))(t)
	must(t, errors.Join(first.Load(), second.Load()))
	if add := kernel(t, d, "add"); add.early || !second.early {
		t.Errorf("early: code for sm_80 %v, for this device %v", add.early, second.early)
	}
	s := newStream(t, d)
	p, h := device(t, d, s, 3), pinned[uint64](t, d, 3)
	one := [3]int{1, 1, 1}
	both := func() {
		t.Helper()
		args := []uint64{uint64(uintptr(p))}
		must(t, s.Fill(p, 4, 0, 6))
		must(t, s.Launch(first, one, one, 0, args))
		must(t, s.LaunchEarly(second, one, one, 0, args))
		must(t, s.Copy(at(h), p, 24))
	}
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"stream", both},
		{"graph", func() {
			must(t, s.BeginCapture(ThreadLocal))
			both()
			g := try(s.EndCapture())(t)
			x := try(g.Instantiate())(t)
			must(t, x.Launch(s))
			must(t, s.Synchronize())
			must(t, errors.Join(g.Close(), x.Close()))
		}},
	} {
		clear(h)
		c.run()
		must(t, s.Synchronize())
		if h[0] == 0 || h[2] != h[0] {
			t.Errorf("%s: the second kernel has read %d, and the first wrote %d", c.name, h[2], h[0])
		}
		if h[1] >= h[0] {
			t.Errorf("%s: the second kernel began %d ns after the end of the first, not early", c.name, h[1]-h[0])
		}
	}
	must(t, m.Close())
}

func TestGPUModuleErrors(t *testing.T) {
	d := openGPU(t)
	_, err := d.LoadModule([]byte(strings.Replace(ptx, "mad.lo.u32", "mad.up.u32", 1)))
	if e := wantError(t, err, "cuModuleLoadDataEx", ErrInvalidPTX); !strings.Contains(e.Detail, "line") {
		t.Errorf("the compiler's text is %q", e.Detail)
	}
	if _, err := d.LoadModule([]byte("no image")); err == nil {
		t.Error("an image that is none has loaded")
	}
	m := try(d.LoadModule([]byte(ptx)))(t)
	_, err = m.Function("nobody")
	wantError(t, err, "cuModuleGetFunction", ErrNotFound)
	must(t, errors.Join(m.Close(), m.Close()))
}

func TestGPUGraph(t *testing.T) {
	d := openGPU(t)
	s, side := newStream(t, d), newStream(t, d)
	add := kernel(t, d, "add")
	const n = 1000
	p, h := device(t, d, s, n), pinned[uint32](t, d, n)
	fork, join := try(d.NewEvent(false))(t), try(d.NewEvent(false))(t)
	must(t, s.Synchronize())
	calls := 0
	c := NewCallback(func() { calls++ })
	defer c.Close()
	// The graph is: fill with start, add v, on the other stream; copy to the host, call back.
	capture := func(m CaptureMode, start, v uint64, shorter bool) *Graph {
		t.Helper()
		must(t, s.BeginCapture(m))
		if on := try(s.Capturing())(t); !on {
			t.Error("not capturing")
		}
		must(t, s.Fill(p, 4, start, n))
		must(t, fork.Record(s))
		must(t, side.Wait(fork))
		must(t, side.Launch(add, [3]int{4, 1, 1}, [3]int{256, 1, 1}, 0, []uint64{uint64(uintptr(p)), n, v}))
		must(t, join.Record(side))
		must(t, s.Wait(join))
		must(t, s.Copy(at(h), p, 4*n))
		nodes := 3
		if !shorter {
			must(t, s.HostFunc(c))
			nodes++
		}
		g := try(s.EndCapture())(t)
		if got := try(g.Nodes())(t); got != nodes {
			t.Errorf("%d nodes, want %d", got, nodes)
		}
		return g
	}
	for _, m := range []CaptureMode{Global, ThreadLocal, Relaxed} {
		calls = 0
		h[0], h[n-1] = 0, 0
		g := capture(m, 100, 11, false)
		must(t, s.Synchronize())
		if h[0] != 0 || calls != 0 {
			t.Fatal("what was captured has run")
		}
		x := try(g.Instantiate())(t)
		must(t, g.Close())
		for range 3 {
			must(t, x.Launch(s))
		}
		must(t, s.Synchronize())
		if h[0] != 111 || h[n-1] != 111 || calls != 3 {
			t.Errorf("mode %d: %d, %d after %d calls; want 111 after 3", m, h[0], h[n-1], calls)
		}
		g = capture(m, 200, 22, false)
		must(t, x.Update(g))
		must(t, g.Close())
		must(t, x.Launch(s))
		must(t, s.Synchronize())
		if h[0] != 222 || calls != 4 {
			t.Errorf("mode %d after the update: %d after %d calls; want 222 after 4", m, h[0], calls)
		}
		g = capture(m, 0, 0, true)
		if e := wantError(t, x.Update(g), "cuGraphExecUpdate", ErrGraphUpdate); e.Detail != changes[2] {
			t.Errorf("detail %q", e.Detail)
		}
		must(t, g.Close())
		must(t, x.Launch(s)) // as it was
		must(t, s.Synchronize())
		if h[0] != 222 {
			t.Errorf("mode %d after a refused update: %d", m, h[0])
		}
		must(t, errors.Join(x.Close(), x.Close()))
	}
	must(t, errors.Join(fork.Close(), join.Close()))
}

func TestGPUCaptureEnds(t *testing.T) {
	d := openGPU(t)
	s, side := newStream(t, d), newStream(t, d)
	e := try(d.NewEvent(false))(t)
	p := device(t, d, s, 8)
	must(t, s.Synchronize())
	idle := func() {
		t.Helper()
		if on := try(s.Capturing())(t); on {
			t.Fatal("still capturing")
		}
		must(t, s.Fill(p, 4, 0, 16))
		must(t, s.Synchronize())
	}
	must(t, s.Abandon())
	must(t, s.BeginCapture(ThreadLocal))
	must(t, s.Fill(p, 4, 1, 16))
	must(t, s.Abandon())
	idle()

	for _, m := range []CaptureMode{Global, ThreadLocal, Relaxed} {
		for _, abandon := range []bool{false, true} {
			must(t, s.BeginCapture(m))
			must(t, s.Fill(p, 4, 1, 16))
			if err := s.Synchronize(); !errors.Is(err, ErrCaptureUnsupported) { // not allowed, and makes the capture invalid
				t.Errorf("mode %d: Synchronize in a capture: %v", m, err)
			}
			if abandon {
				must(t, s.Abandon())
			} else {
				_, err := s.EndCapture()
				wantError(t, err, "cuStreamEndCapture", ErrCaptureInvalidated)
			}
			idle()
		}
	}

	must(t, s.BeginCapture(ThreadLocal))
	must(t, onFreshThread(func() error {
		_, err := s.EndCapture()
		wantError(t, err, "cuStreamEndCapture", ErrCaptureWrongThread)
		return nil
	}))
	must(t, s.Abandon())
	idle()

	for _, abandon := range []bool{false, true} {
		must(t, s.BeginCapture(Relaxed))
		must(t, e.Record(s))
		must(t, side.Wait(e))
		must(t, side.Fill(p, 4, 1, 16))
		if abandon {
			must(t, s.Abandon())
		} else {
			_, err := s.EndCapture()
			wantError(t, err, "cuStreamEndCapture", ErrCaptureUnjoined)
		}
		idle()
		must(t, side.Synchronize())
	}
	must(t, e.Close())
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

func TestGPUNoAllocation(t *testing.T) {
	d := openGPU(t)
	s := newStream(t, d)
	f := kernel(t, d, "add")
	e := try(d.NewEvent(false))(t)
	p, h := device(t, d, s, 8), pinned[uint64](t, d, 8)
	for name, call := range map[string]func() error{
		"Launch": func() error {
			args := [3]uint64{uint64(uintptr(p)), 8, 1}
			return s.Launch(f, [3]int{1, 1, 1}, [3]int{32, 1, 1}, 0, args[:])
		},
		"Copy":   func() error { return s.Copy(at(h), p, 64) },
		"Fill":   func() error { return s.Fill(p, 4, 1, 16) },
		"Record": func() error { return e.Record(s) },
		"Wait":   func() error { return s.Wait(e) },
		"Query":  func() error { _, err := e.Query(); return err },
	} {
		var err error
		if n := testing.AllocsPerRun(100, func() { err = errors.Join(err, call()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
		must(t, err)
	}
	must(t, s.Synchronize())
	must(t, e.Close())
}
