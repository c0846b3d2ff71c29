package cuda

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda/nvrtc"
)

// ptx has a kernel that stores each of its arguments, and one that adds v to the n words of p.
const ptx = `
.version 7.0
.target sm_80
.address_size 64

.visible .entry widths(.param .u64 p, .param .u8 a, .param .u16 b, .param .u32 c,
	.param .u64 d, .param .f32 e, .param .f64 f)
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
	must(t, s.Launch(f, one, one, 0, []uint64{uint64(uintptr(p)), junk | 0xf1, junk | 0xf123,
		junk&^(1<<40-1) | 0xf1234567,
		0xf123456789abcdef, junk | uint64(math.Float32bits(1.5)), math.Float64bits(-2.5)}))
	must(t, s.Copy(at(h), p, 48))
	must(t, s.Synchronize())
	if want := []uint64{0xf1, 0xf123, 0xf1234567, 0xf123456789abcdef, math.Float64bits(1.5),
		math.Float64bits(-2.5)}; !slices.Equal(h, want) {
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

// early has two kernels. One lets the next one start at once, and after a millisecond writes the
// time. The other, to be launched early, writes its begin, and what it has read of the first.
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
	// In a graph the second kernel may have two ahead. The one on the other stream ends last.
	side := newStream(t, d)
	other, fork, join := device(t, d, s, 6), try(d.NewEvent())(t), try(d.NewEvent())(t)
	on := func(p unsafe.Pointer) []uint64 { return []uint64{uint64(uintptr(p))} }
	must(t, errors.Join(s.Fill(p, 4, 0, 6), s.BeginCapture(ThreadLocal), fork.Record(s), side.Wait(fork),
		s.Launch(first, one, one, 0, on(other)), side.Launch(first, one, one, 0, on(unsafe.Add(other, 24))),
		side.Launch(first, one, one, 0, on(p)), join.Record(side), s.Wait(join),
		s.LaunchEarly(second, one, one, 0, on(p)), s.Copy(at(h), p, 24)))
	g := try(s.EndCapture())(t)
	x := try(g.Instantiate())(t)
	must(t, errors.Join(x.Launch(s), s.Synchronize()))
	if h[0] == 0 || h[2] != h[0] {
		t.Errorf("behind two kernels: the second has read %d, and the one on the other stream wrote %d", h[2], h[0])
	}
	must(t, errors.Join(g.Close(), x.Close(), fork.Close(), join.Close(), m.Close()))
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
	fork, join := try(d.NewEvent())(t), try(d.NewEvent())(t)
	must(t, s.Synchronize())
	calls := 0
	c := NewCallback(func() { calls++ })
	defer c.Close()
	// The graph is: fill with start, add v, on the other stream; copy to the host, call back.
	capture := func(m CaptureMode, start, v uint64) *Graph {
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
		must(t, s.HostFunc(c))
		g := try(s.EndCapture())(t)
		if got := try(g.Nodes())(t); got != 4 {
			t.Errorf("%d nodes, want 4", got)
		}
		return g
	}
	for _, m := range []CaptureMode{Global, ThreadLocal, Relaxed} {
		calls = 0
		h[0], h[n-1] = 0, 0
		g := capture(m, 100, 11)
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
		must(t, errors.Join(x.Close(), x.Close()))
	}
	must(t, errors.Join(fork.Close(), join.Close()))
}

func TestGPUCaptureEnds(t *testing.T) {
	d := openGPU(t)
	s, side := newStream(t, d), newStream(t, d)
	e := try(d.NewEvent())(t)
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
			// not allowed, and makes the capture invalid
			if err := s.Synchronize(); !errors.Is(err, ErrCaptureUnsupported) {
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
