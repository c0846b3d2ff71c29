package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"lockstep/internal/testkit"
)

// TestFake runs against the double of libcuda, in a process of its own: this one's may have the
// real driver.
func TestFake(t *testing.T) {
	testkit.RunWithLibraries(t, func(dir string) { testkit.BuildCUDA(t, dir) }, nil, func(t *testing.T) {
		must(t, Load())
		for _, c := range []struct {
			name string
			run  func(t *testing.T)
		}{
			{"Loading", fakeLoading}, {"Device", fakeDevice}, {"Exclusive", fakeExclusive},
			{"Memory", fakeMemory}, {"Managed", fakeManaged}, {"ManagedRoom", fakeManagedRoom},
			{"Statuses", fakeStatuses}, {"Refusals", fakeRefusals}, {"CopyAndFill", fakeCopyAndFill},
			{"Launch", fakeLaunch},
			{"LaunchEarly", fakeLaunchEarly},
			{"LaunchShape", fakeLaunchShape}, {"TensorMap", fakeTensorMap},
			{"Threads", fakeThreads}, {"Bind", fakeBind}, {"Events", fakeEvents}, {"Callback", fakeCallback},
			{"Graph", fakeGraph}, {"GraphRecords", fakeGraphRecords}, {"CaptureEnds", fakeCaptureEnds},
			{"CaptureThread", fakeCaptureThread}, {"Module", fakeModule},
			{"Teardown", fakeTeardown}, {"IPC", fakeIPC},
			{"RegisterHost", fakeRegisterHost}, {"Values", fakeValues}, {"Delay", fakeDelay},
			{"RecordsAnew", fakeRecordsAnew}, {"NoAllocation", fakeNoAllocation},
		} {
			t.Run(c.name, c.run)
		}
	})
}

// logOf returns a function that gives the lines the double has logged since the last call.
func logOf(t *testing.T) func() []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	t.Setenv("FAKECUDA_LOG", path)
	seen := 0
	return func() []string {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(b[seen:]), "\n"), "\n")
		seen = len(b)
		return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	}
}

// openFake opens the first device. The test stays on its thread: the first call of any other
// thread makes the context current.
func openFake(t *testing.T) *Device {
	t.Helper()
	d := try(Open(0))(t)
	runtime.LockOSThread()
	t.Cleanup(func() {
		runtime.UnlockOSThread()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func fakeLoading(t *testing.T) {
	t.Cleanup(func() { must(t, open(libFiles...)) })
	if v := DriverVersion(); v != 13000 {
		t.Errorf("version %d", v)
	}
	said := func(err error, words ...string) {
		t.Helper()
		if err == nil {
			t.Fatal("no error")
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the error lacks %q: %v", w, err)
			}
		}
	}
	said(open("libcuda-of-nobody.so.1"), "libcuda-of-nobody.so.1", "no usable NVIDIA driver")
	if text := ErrOutOfMemory.Error(); text != "CUDA_ERROR_OUT_OF_MEMORY (2)" {
		t.Errorf("without a library the result prints as %q", text)
	}

	lib := testkit.BuildCUDA(t, t.TempDir(), testkit.WithoutSymbols("cuMemAlloc_v2", "cuGraphLaunch")...)
	said(open(lib), "lacks cuMemAlloc_v2", "lacks cuGraphLaunch", "13.0")
	lib = testkit.BuildCUDA(t, t.TempDir(), testkit.WithoutSymbols("cuDriverGetVersion")...)
	said(open(lib), "lacks cuDriverGetVersion")

	// An old driver also lacks symbols: its age is the better explanation.
	lib = testkit.BuildCUDA(t, t.TempDir(), testkit.WithoutSymbols("cuGraphExecDestroy")...)
	t.Setenv("FAKECUDA_VERSION", "11080")
	said(open(lib), "11.8", "12.0")
	t.Setenv("FAKECUDA_VERSION", "12020")

	lib = testkit.BuildCUDA(t, t.TempDir(),
		testkit.WithoutSymbols("cuFuncLoad", "cuEventElapsedTime_v2", "cuGetErrorName", "cuGetErrorString",
			"cuDeviceGetUuid")...)
	must(t, open(lib))
	if v := version.Load(); v != 12020 {
		t.Errorf("version %d", v)
	}
	if text := ErrOutOfMemory.Error(); text != "CUDA_ERROR_OUT_OF_MEMORY (2)" {
		t.Errorf("without cuGetErrorName the result prints as %q", text)
	}
	log := logOf(t)
	d := try(Open(0))(t)
	f := try(try(d.LoadModule([]byte("image")))(t).Function("k"))(t)
	log()
	must(t, f.Load())
	a, b := try(d.NewTimedEvent())(t), try(d.NewTimedEvent())(t)
	s := try(d.NewStream(0))(t)
	must(t, a.Record(s))
	must(t, b.Record(s))
	if _, err := b.Elapsed(a); err != nil {
		t.Error(err)
	}
	got := strings.Join(log(), "\n")
	for _, want := range []string{"cuFuncGetAttribute function=k attribute=3", "cuEventElapsedTime from="} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	must(t, d.Close())

	must(t, open(libFiles...))
	if text := ErrOutOfMemory.Error(); text != "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" {
		t.Errorf("the result prints as %q", text)
	}
	// a name of our table
	if text := ErrInvalidValue.Error(); text != "CUDA_ERROR_INVALID_VALUE (1): invalid argument" {
		t.Errorf("the result prints as %q", text)
	}
	t.Setenv("FAKECUDA_FAIL", "cuDriverGetVersion=999")
	wantError(t, open(libFiles...), "cuDriverGetVersion", ErrUnknown)
	t.Setenv("FAKECUDA_FAIL", "cuInit=803")
	wantError(t, open(libFiles...), "cuInit", ErrDriverMismatch)
	t.Setenv("FAKECUDA_FAIL", "")
	t.Setenv("FAKECUDA_DEVICES", "0")
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	if e := wantError(t, open(libFiles...), "cuInit", ErrNoDevice); e.Detail != `CUDA_VISIBLE_DEVICES="7"` {
		t.Errorf("detail %q", e.Detail)
	}
	t.Setenv("FAKECUDA_DEVICES", "1")
}

func fakeDevice(t *testing.T) {
	t.Setenv("FAKECUDA_DEVICES", "2")
	t.Setenv("FAKECUDA_MEMORY", "5000")
	if n := try(Count())(t); n != 2 {
		t.Errorf("%d devices", n)
	}
	const uuid = "GPU-00112233-4455-6677-8899-aabbccdd0001"
	if id := try(UUIDOf(1))(t); id != uuid {
		t.Errorf("UUID %s", id)
	}
	d := try(Open(1))(t)
	major, minor := d.Capability()
	least, greatest := d.Priorities()
	got := fmt.Sprint(d.Index(), d.Name(), d.UUID(), major, minor, d.Multiprocessors(), d.Memory(),
		d.PCI(), least, greatest)
	if want := fmt.Sprint(1, "Fake GPU", uuid, 9, 0, 132, 5000, "0000:3b:00.0", 0, -5); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p := try(d.Malloc(1000))(t)
	free, total, err := d.MemInfo()
	if err != nil || free != 4000 || total != 5000 {
		t.Errorf("MemInfo: %d, %d, %v", free, total, err)
	}
	must(t, d.Free(p))
	must(t, d.Synchronize())
	for _, i := range []int{-1, 2} {
		_, err := Open(i)
		if e := wantError(t, err, "cuDeviceGet", ErrInvalidDevice); e.Detail != fmt.Sprintf("device %d of 2", i) {
			t.Errorf("detail %q", e.Detail)
		}
	}
	log := logOf(t)
	must(t, d.Close())
	must(t, d.Close())
	if n := strings.Count(strings.Join(log(), "\n"), "cuDevicePrimaryCtxRelease_v2"); n != 1 {
		t.Errorf("closed twice, released %d times", n)
	}
	_, err = d.Malloc(1)
	wantError(t, err, "cuMemAlloc", ErrInvalidContext)
	t.Setenv("FAKECUDA_MIG", "1")
	if id := try(UUIDOf(1))(t); id != "MIG-00112233-4455-6677-8899-aabbccdd0101" {
		t.Errorf("UUID of a part %s", id)
	}
}

func fakeExclusive(t *testing.T) {
	t.Setenv("FAKECUDA_FAIL", "cuDevicePrimaryCtxRetain=46")
	for mode, want := range map[string]string{"0": "Fake GPU, GPU-", "2": "Prohibited", "3": "another process has it"} {
		t.Setenv("FAKECUDA_COMPUTE_MODE", mode)
		_, err := Open(0)
		if e := wantError(t, err, "cuDevicePrimaryCtxRetain", ErrDeviceUnavailable); !strings.Contains(e.Detail, want) {
			t.Errorf("mode %s: detail %q", mode, e.Detail)
		}
	}
}

func fakeMemory(t *testing.T) {
	t.Setenv("FAKECUDA_MEMORY", "1000")
	log := logOf(t)
	d := openFake(t)
	p := try(d.Malloc(600))(t)
	_, err := d.Malloc(401)
	if e := wantError(t, err, "cuMemAlloc", ErrOutOfMemory); e.Detail != "401 bytes asked for, 400 of "+
		"1000 free on GPU 0" {
		t.Errorf("detail %q", e.Detail)
	}
	_, err = d.MallocManaged(401)
	if e := wantError(t, err, "cuMemAllocManaged",
		ErrOutOfMemory); e.Detail != "401 bytes asked for, 400 of 1000 free on GPU 0" {
		t.Errorf("detail %q", e.Detail)
	}
	m := try(d.MallocManaged(400))(t)
	h := try(d.MallocHost(1 << 16))(t) // no memory of the device
	must(t, d.Free(m))
	must(t, d.Free(p))
	must(t, d.FreeHost(h))
	wantError(t, d.Free(p), "cuMemFree", ErrInvalidValue)
	wantError(t, d.FreeHost(h), "cuMemFreeHost", ErrInvalidValue)
	must(t, d.Free(nil))
	must(t, d.FreeHost(nil))
	lines := strings.Join(log(), "\n")
	if strings.Count(lines, "cuMemAllocManaged") != 1 {
		t.Errorf("the driver was asked for more than is free:\n%s", lines)
	}
	if !strings.Contains(lines, "cuMemHostAlloc bytes=65536 flags=3 ") { // portable and device-mapped
		t.Errorf("pinned memory is not as it should be:\n%s", lines)
	}
	for name, alloc := range map[string]func(int) (unsafe.Pointer, error){
		"cuMemAlloc": d.Malloc, "cuMemHostAlloc": d.MallocHost, "cuMemAllocManaged": d.MallocManaged,
	} {
		if p, err := alloc(0); p != nil || err != nil {
			t.Errorf("%s of nothing: %v, %v", name, p, err)
		}
		_, err := alloc(-1)
		wantError(t, err, name, ErrInvalidValue)
	}
}

func fakeCopyAndFill(t *testing.T) {
	d := openFake(t)
	s := try(d.NewStream(0))(t)
	const n = 24
	p, h := try(d.Malloc(n))(t), try(d.MallocHost(n))(t)
	host := unsafe.Slice((*byte)(h), n)
	for _, c := range []struct {
		size int
		want []byte
	}{{1, []byte{0x88}}, {2, []byte{0x88, 0x77}}, {4, []byte{0x88, 0x77, 0x66, 0x55}}} {
		must(t, s.Fill(p, 1, 0, n))
		must(t, s.Fill(unsafe.Add(p, 4), c.size, 0x1122334455667788, 3))
		must(t, s.Copy(h, p, n))
		want := make([]byte, n)
		copy(want[4:], slices.Repeat(c.want, 3))
		if !slices.Equal(host, want) {
			t.Errorf("size %d: % x, want % x", c.size, host, want)
		}
	}
	wantError(t, s.Copy(unsafe.Add(p, 1), h, n), "cuMemcpyAsync", ErrInvalidValue) // past the end
	must(t, d.Free(p))
	must(t, d.FreeHost(h))
	must(t, s.Close())
}

func fakeEvents(t *testing.T) {
	d := openFake(t)
	log := logOf(t)
	s := try(d.NewStream(-100))(t)
	timed, bare := try(d.NewTimedEvent())(t), try(d.NewEvent())(t)
	lines := strings.Join(log(), "\n")
	for _, want := range []string{"flags=1 priority=-5 = 0", " flags=0 = 0", " flags=2 = 0"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
	_, err := timed.Elapsed(timed)
	wantError(t, err, "cuEventElapsedTime", ErrInvalidHandle) // not recorded
	must(t, timed.Record(s))
	must(t, bare.Record(s))
	_, err = bare.Elapsed(timed)
	wantError(t, err, "cuEventElapsedTime", ErrInvalidHandle) // without timing
	later := try(d.NewTimedEvent())(t)
	start := time.Now()
	for time.Since(start) < 2*time.Millisecond {
	}
	must(t, later.Record(s))
	if dt := try(later.Elapsed(timed))(t); dt < 2*time.Millisecond || dt > time.Minute {
		t.Errorf("elapsed %v", dt)
	}
	if dt := try(timed.Elapsed(later))(t); dt > -2*time.Millisecond {
		t.Errorf("elapsed backwards %v", dt)
	}

	ask := func(want bool, query func() (bool, error)) {
		t.Helper()
		if done, err := query(); done != want || err != nil {
			t.Errorf("done is %v, %v, want %v", done, err, want)
		}
	}
	spin := func(limit time.Duration) func() (bool, error) {
		return func() (bool, error) { return timed.Spin(limit) }
	}
	ask(true, timed.Query)
	ask(true, s.Query)
	ask(true, spin(0))
	t.Setenv("FAKECUDA_FAIL", "cuEventQuery=600,cuStreamQuery=600")
	ask(false, timed.Query)
	ask(false, s.Query)
	ask(false, spin(0))
	ask(false, spin(-time.Second))
	ask(false, spin(time.Millisecond))
	// The third of the queries of one Spin finds it done.
	t.Setenv("FAKECUDA_FAIL", "cuEventQuery=600@1,cuEventQuery=600@2")
	log()
	ask(true, spin(time.Hour))
	if got := log(); len(got) != 3 {
		t.Errorf("Spin does\n%s", strings.Join(got, "\n"))
	}
	for range 2 {
		must(t, errors.Join(timed.Close(), bare.Close(), later.Close(), s.Close()))
	}
}

// Everything is closed twice; the driver sees each destruction once, and an empty context at the
// end.
func fakeTeardown(t *testing.T) {
	t.Setenv("FAKECUDA_DEVICES", "2")
	d := try(Open(1))(t)
	s, e := try(d.NewStream(0))(t), try(d.NewEvent())(t)
	p := try(d.Malloc(64))(t)
	m := try(d.LoadModule([]byte("image")))(t)
	must(t, s.BeginCapture(Relaxed))
	g := try(s.EndCapture())(t)
	x := try(g.Instantiate())(t)
	log := logOf(t)
	for range 2 {
		must(t, errors.Join(x.Close(), g.Close(), m.Close(), e.Close(), s.Close()))
	}
	must(t, d.Free(p))
	for range 2 {
		must(t, d.Close())
	}
	var got []string
	lines := log()
	for _, l := range lines {
		if name := strings.Fields(l)[0]; name != "cuCtxSetCurrent" {
			got = append(got, name)
		}
	}
	want := []string{"cuGraphExecDestroy", "cuGraphDestroy", "cuModuleUnload", "cuEventDestroy_v2",
		"cuStreamDestroy_v2", "cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if last := lines[len(lines)-1]; last != "cuDevicePrimaryCtxRelease_v2 device=1 refs=0 streams=0 "+
		"events=0 graphs=0 execs=0 modules=0 bytes=0 = 0" {
		t.Errorf("at the end: %s", last)
	}
}

func fakeNoAllocation(t *testing.T) {
	o := make1(t)
	must(t, o.k.Load())
	one := [3]int{1, 1, 1}
	for name, call := range map[string]func() error{
		"Launch": func() error {
			var args [3]uint64
			args[0] = uint64(uintptr(o.p))
			return o.s.Launch(o.k, one, one, 0, args[:])
		},
		"LaunchEarly": func() error {
			var args [3]uint64
			args[0] = uint64(uintptr(o.p))
			return o.s.LaunchEarly(o.k, one, one, 0, args[:])
		},
		"Copy":        func() error { return o.s.Copy(o.p, o.h, 64) },
		"Fill":        func() error { return o.s.Fill(o.p, 4, 1, 16) },
		"Record":      func() error { return o.e.Record(o.s) },
		"Wait":        func() error { return o.s.Wait(o.e) },
		"Query":       func() error { _, err := o.s.Query(); return err },
		"Event.Query": func() error { _, err := o.e.Query(); return err },
		"Spin":        func() error { _, err := o.e.Spin(time.Second); return err },
		"HostFunc":    func() error { return o.s.HostFunc(o.c) },
		"Exec.Launch": func() error { return o.x.Launch(o.s) },
		"Synchronize": func() error { return o.s.Synchronize() },
	} {
		if n := testkit.Allocations(50, func() { must(t, call()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	must(t, o.close())
}
