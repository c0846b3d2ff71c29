package cuda

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/testkit"
)

func fakeLaunch(t *testing.T) {
	o := make1(t)
	log := logOf(t)
	args := []uint64{0xff, 0xffff, 0xffffffff, math.MaxUint64, uint64(math.Float32bits(1.5)),
		math.Float64bits(-2.5), 0x7f0012345678}
	must(t, o.s.Launch(o.k, [3]int{1 << 30, 2, 3}, [3]int{4, 5, 6}, 7, args))
	must(t, o.s.Launch(o.k, [3]int{1, 1, 1}, [3]int{1, 1, 1}, 0, nil))
	got := make([]string, 0, 2)
	for _, l := range log() {
		got = append(got, regexp.MustCompile(`stream=\d+`).ReplaceAllString(l, "stream=N"))
	}
	want := []string{
		"cuLaunchKernel function=k grid=1073741824,2,3 block=4,5,6 shared=7 stream=N " +
			"args=0xff,0xffff,0xffffffff,0xffffffffffffffff,0x3fc00000,0xc004000000000000,0x7f0012345678 = 0",
		"cuLaunchKernel function=k grid=1,1,1 block=1,1,1 shared=0 stream=N args= = 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	must(t, o.close())
}

// fakeLaunchEarly: the driver's arguments, and the cases of an ordinary launch.
func fakeLaunchEarly(t *testing.T) {
	t.Cleanup(func() { must(t, open(libFiles...)) })
	const early, plain = "cuLaunchKernelEx", "cuLaunchKernel"
	for _, c := range []struct {
		name, function, major, version string
		without                        []string
		load                           bool
		want                           string
	}{
		{"all there is", "k", "9", "12030", nil, true, early},
		{"not loaded", "k", "9", "12030", nil, false, plain},
		{"code for another device", "old", "9", "12030", nil, true, plain},
		{"older device", "k", "8", "12030", nil, true, plain},
		{"older driver", "k", "9", "12020", nil, true, plain},
		{"no symbol", "k", "9", "12030", []string{early}, true, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKECUDA_MAJOR", c.major)
			t.Setenv("FAKECUDA_VERSION", c.version)
			must(t, open(testkit.BuildCUDA(t, t.TempDir(), testkit.WithoutSymbols(c.without...)...)))
			d := openFake(t)
			s, m := try(d.NewStream(0))(t), try(d.LoadModule([]byte("image")))(t)
			f := try(m.Function(c.function))(t)
			if c.load {
				must(t, f.Load())
			}
			log := logOf(t)
			launch := func() {
				must(t, s.LaunchEarly(f, [3]int{1 << 30, 2, 3}, [3]int{4, 5, 6}, 7, []uint64{0xff, math.MaxUint64}))
			}
			launch()
			must(t, s.BeginCapture(ThreadLocal))
			launch()
			x := try(try(s.EndCapture())(t).Instantiate())(t)
			must(t, x.Launch(s))
			var got []string
			for _, l := range log() {
				if l = regexp.MustCompile(` stream=\d+`).ReplaceAllString(l, ""); strings.Contains(l,
					"cuLaunchKernel") {
					got = append(got, l)
				}
			}
			want := c.want + " function=" + c.function +
				" grid=1073741824,2,3 block=4,5,6 shared=7 args=0xff,0xffffffffffffffff = 0"
			if !slices.Equal(got, []string{want, want, "replay " + want}) {
				t.Errorf("got\n%s\nwant, twice and replayed,\n%s", strings.Join(got, "\n"), want)
			}
			wantError(t, s.LaunchEarly(f, [3]int{-1, 1, 1}, [3]int{1, 1, 1}, 0, nil), c.want, ErrInvalidValue)
			// Behind a Wait there may be several kernels ahead.
			e := try(d.NewEvent())(t)
			must(t, errors.Join(e.Record(s), s.Wait(e)))
			launch()
			launch()
			var names []string
			for _, l := range log() {
				if name := strings.Fields(l)[0]; strings.HasPrefix(name, plain) {
					names = append(names, name)
				}
			}
			if n := len(names); n < 2 || !slices.Equal(names[n-2:], []string{plain, c.want}) {
				t.Errorf("behind a Wait: %v, want %s and %s at last", names, plain, c.want)
			}
			must(t, errors.Join(e.Close(), x.Close(), m.Close(), s.Close()))
		})
	}
}

// fakeLaunchShape: clusters, with and without an early start, and arguments longer than a word.
func fakeLaunchShape(t *testing.T) {
	t.Setenv("FAKECUDA_MAJOR", "9")
	t.Setenv("FAKECUDA_VERSION", "12030")
	d := openFake(t)
	s, m := try(d.NewStream(0))(t), try(d.LoadModule([]byte("image")))(t)
	f := try(m.Function("k"))(t)
	must(t, f.Load())
	log := logOf(t)
	g := Shape{Blocks: [3]int{8, 2, 3}, Threads: [3]int{4, 5, 6}, Shared: 7, Cluster: [3]int{4, 1, 3}}
	words := []uint64{0xa, 0xb, 0xc, 0xd}
	must(t, s.LaunchShape(f, &g, words, []uint32{0, 1, 3})) // the second is of two words
	g.Programmatic = true
	must(t, s.LaunchShape(f, &g, words, nil))
	g.Cluster = [3]int{}
	must(t, s.LaunchShape(f, &g, nil, nil))
	g.Programmatic = false
	must(t, s.LaunchShape(f, &g, words[:1], nil))
	var got []string
	for _, l := range log() {
		got = append(got, regexp.MustCompile(` stream=\d+`).ReplaceAllString(l, ""))
	}
	const shape = " function=k grid=8,2,3 block=4,5,6"
	want := []string{
		"cuLaunchKernelEx" + shape + " cluster=4,1,3 shared=7 args=0xa,0xb,0xd = 0",
		"cuLaunchKernelEx" + shape + " cluster=4,1,3 early shared=7 args=0xa,0xb,0xc,0xd = 0",
		"cuLaunchKernelEx" + shape + " shared=7 args= = 0",
		"cuLaunchKernel" + shape + " shared=7 args=0xa = 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	g.Cluster = [3]int{3, 1, 1} // 8 blocks
	wantError(t, s.LaunchShape(f, &g, words, nil), "cuLaunchKernelEx", ErrInvalidValue)
	g.Cluster = [3]int{-1, 1, 1}
	wantError(t, s.LaunchShape(f, &g, words, nil), "cuLaunchKernelEx", ErrInvalidValue)
	g.Cluster = [3]int{}
	wantError(t, s.LaunchShape(f, &g, words, []uint32{0, 4}), "cuLaunchKernel", ErrInvalidValue)
	must(t, errors.Join(m.Close(), s.Close()))
}

// fakeTensorMap: the driver is given dimensions, strides and box as they are, and the swizzle by
// its number.
func fakeTensorMap(t *testing.T) {
	d := openFake(t)
	p := try(d.Malloc(1 << 12))(t)
	log := logOf(t)
	x := Tensor{At: p, Type: TensorBFloat16, Rank: 2, Sizes: [5]uint64{40, 10}, Strides: [4]uint64{80},
		Box: [5]uint32{64, 8}, Swizzle: 128}
	m := try(d.TensorMap(&x))(t)
	if want := (TensorMap{uint64(uintptr(p)), 2, 40, 10}); m != want {
		t.Errorf("the map is %x, want %x", m, want)
	}
	for swizzle, n := range map[int]string{0: "0", 32: "1", 64: "2", 128: "3"} {
		x.Swizzle, x.Box[0] = swizzle, 16
		try(d.TensorMap(&x))(t)
		if l := log(); !strings.HasSuffix(l[len(l)-1],
			"type=9 rank=2 sizes=40,10 stride=80 box=16,8 swizzle="+n+" = 0") {
			t.Errorf("swizzled in %d bytes: %s", swizzle, l[len(l)-1])
		}
	}
	for _, bad := range []Tensor{{At: p, Rank: 0}, {At: p, Rank: 6}, {At: p, Rank: 1, Swizzle: 16},
		{At: p, Rank: 1, Swizzle: 33}, {At: p, Rank: 1, Swizzle: 256}} {
		_, err := d.TensorMap(&bad)
		wantError(t, err, "cuTensorMapEncodeTiled", ErrInvalidValue)
	}
	x.Strides[0] = 72
	_, err := d.TensorMap(&x)
	wantError(t, err, "cuTensorMapEncodeTiled", ErrInvalidValue)
	must(t, d.Free(p))
}

func fakeThreads(t *testing.T) {
	t.Setenv("FAKECUDA_DEVICES", "2")
	d, other := openFake(t), try(Open(1))(t)
	log := logOf(t)
	var thread int
	must(t, onFreshThread(func() error {
		thread = syscall.Gettid()
		for _, d := range []*Device{d, d, other, d} {
			if err := d.Synchronize(); err != nil {
				return err
			}
		}
		return nil
	}))
	set := func(device int) string { return fmt.Sprintf("cuCtxSetCurrent device=%d thread=%d = 0", device, thread) }
	sync := func(device int) string { return fmt.Sprintf("cuCtxSynchronize device=%d = 0", device) }
	want := []string{set(0), sync(0), sync(0), set(1), sync(1), set(0), sync(0)}
	if got := log(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The calling thread of Close keeps no context that is gone.
	must(t, onFreshThread(func() error {
		if err := other.Synchronize(); err != nil {
			return err
		}
		log()
		if err := other.Close(); err != nil {
			return err
		}
		if got := log(); len(got) != 2 || !strings.HasPrefix(got[0], "cuCtxSetCurrent device=-1") {
			t.Errorf("Close does\n%s", strings.Join(got, "\n"))
		}
		return nil
	}))
}

func fakeBind(t *testing.T) {
	d := openFake(t)
	b := d.Bind()
	if b.Enter == nil || b.Context == nil {
		t.Fatalf("%+v", b)
	}
	must(t, onFreshThread(func() error {
		log := logOf(t)
		if r := testkit.CallC(b.Enter, b.Context); r != 0 {
			t.Errorf("Enter returns %d", r)
		}
		if got := log(); len(got) != 1 || !strings.HasPrefix(got[0], "cuCtxSetCurrent device=0") {
			t.Errorf("Enter does\n%s", strings.Join(got, "\n"))
		}
		return nil
	}))
	must(t, onFreshThread(func() error {
		t.Setenv("FAKECUDA_FAIL", "cuCtxSetCurrent=201")
		if r := testkit.CallC(b.Enter, b.Context); r != int(ErrInvalidContext) {
			t.Errorf("Enter returns %d, want the status alone", r)
		}
		return nil
	}))
}

func fakeModule(t *testing.T) {
	d := openFake(t)
	_, err := d.LoadModule([]byte("BAD image"))
	if e := wantError(t, err, "cuModuleLoadDataEx", ErrInvalidPTX); e.Detail != "ptxas fatal   : bad image" {
		t.Errorf("detail %q", e.Detail)
	}
	m := try(d.LoadModule([]byte{0x7f, 'E', 'L', 'F', 0, 1}))(t)
	_, err = m.Function("absent")
	if e := wantError(t, err, "cuModuleGetFunction", ErrNotFound); e.Detail != "absent" {
		t.Errorf("detail %q", e.Detail)
	}
	f := try(m.Function("k"))(t)
	log := logOf(t)
	must(t, f.Load())
	must(t, f.SetMaxShared(100<<10))
	if r := try(f.Registers())(t); r != 32 {
		t.Errorf("%d registers", r)
	}
	if n := try(f.MaxThreads())(t); n != 1024 {
		t.Errorf("%d threads", n)
	}
	want := []string{"cuFuncLoad function=k = 0", "cuFuncGetAttribute function=k attribute=3 = 0",
		"cuCtxGetLimit limit=0 = 0",
		"cuFuncGetAttribute function=k attribute=5 = 0", "cuFuncSetAttribute function=k attribute=8 v=102400 = 0",
		"cuFuncGetAttribute function=k attribute=4 = 0", "cuFuncGetAttribute function=k attribute=0 = 0"}
	if got := log(); !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	// A kernel that needs more local memory gets it now, and once: the launch would wait for all
	// streams.
	deep := try(m.Function("deep"))(t)
	log()
	must(t, errors.Join(deep.Load(), deep.Load()))
	want = []string{"cuFuncLoad function=deep = 0", "cuFuncGetAttribute function=deep attribute=3 = 0",
		"cuCtxGetLimit limit=0 = 0",
		"cuCtxSetLimit limit=0 v=4000 = 0", "cuFuncGetAttribute function=deep attribute=5 = 0"}
	if got := log(); !slices.Equal(got, slices.Concat(want, want[:3], want[4:])) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if e := wantError(t, f.SetMaxShared(1<<20), "cuFuncSetAttribute",
		ErrInvalidValue); e.Detail != "k: 1048576 bytes of shared memory" {
		t.Errorf("detail %q", e.Detail)
	}
	must(t, errors.Join(m.Close(), m.Close()))
}
