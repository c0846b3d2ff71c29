package cuda

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
)

// fakeManagedRoom: managed memory never adds up to more than the device has, though the driver says
// that it is free.
func fakeManagedRoom(t *testing.T) {
	t.Setenv("FAKECUDA_MEMORY", "1000")
	t.Setenv("FAKECUDA_UNTOUCHED", "1")
	d := openFake(t)
	p := try(d.MallocManaged(600))(t)
	log := logOf(t)
	_, err := d.MallocManaged(401)
	if e := wantError(t, err, "cuMemAllocManaged",
		ErrOutOfMemory); e.Detail != "401 bytes asked for, 600 are managed already, GPU 0 has 1000" {
		t.Errorf("detail %q", e.Detail)
	}
	if lines := log(); slices.ContainsFunc(lines,
		func(l string) bool { return strings.HasPrefix(l, "cuMemAllocManaged") }) {
		t.Errorf("the driver was asked for it: %q", lines)
	}
	t.Setenv("FAKECUDA_FAIL", "cuMemAllocManaged=719,cuMemFree_v2=719")
	_, err = d.MallocManaged(400)
	wantError(t, err, "cuMemAllocManaged", ErrLaunchFailed) // what was not given does not count
	wantError(t, d.Free(p), "cuMemFree", ErrLaunchFailed)   // and what was not freed does
	t.Setenv("FAKECUDA_FAIL", "")
	_, err = d.MallocManaged(401)
	wantError(t, err, "cuMemAllocManaged", ErrOutOfMemory)
	q := try(d.MallocManaged(400))(t)
	must(t, d.Free(p))
	p = try(d.MallocManaged(600))(t)
	must(t, d.Free(p))
	must(t, d.Free(q))
}

func fakeManaged(t *testing.T) {
	t.Setenv("FAKECUDA_DEVICES", "2")
	d, other := openFake(t), try(Open(1))(t)
	s := try(d.NewStream(0))(t)
	const n = 1 << 16
	m, p := try(d.MallocManaged(n))(t), try(d.Malloc(n))(t)
	part := unsafe.Add(m, 4100)
	log := logOf(t)

	must(t, s.Prefetch(m, n, d))
	must(t, s.Prefetch(part, 100, other))
	must(t, s.Prefetch(part, 100, nil))
	must(t, d.Advise(m, n, SetReadMostly, nil))
	must(t, d.Advise(part, 100, SetPreferredLocation, d))
	must(t, d.Advise(part, 100, SetAccessedBy, other))
	must(t, s.Prefetch(m, 0, d))
	must(t, d.Advise(m, 0, UnsetAccessedBy, d))
	want := []string{
		fmt.Sprintf("cuMemPrefetchAsync_v2 p=%p bytes=65536 to=1:0", m),
		fmt.Sprintf("cuMemPrefetchAsync_v2 p=%p bytes=100 to=1:1", part),
		fmt.Sprintf("cuMemPrefetchAsync_v2 p=%p bytes=100 to=2:0", part),
		fmt.Sprintf("cuMemAdvise_v2 p=%p bytes=65536 advice=1 of=2:0", m),
		fmt.Sprintf("cuMemAdvise_v2 p=%p bytes=100 advice=3 of=1:0", part),
		fmt.Sprintf("cuMemAdvise_v2 p=%p bytes=100 advice=5 of=1:1", part),
	}
	got := log()
	same := slices.EqualFunc(want, got, func(w, g string) bool {
		return len(g) > len(w) && g[:len(w)] == w && g[len(w)] == ' '
	})
	if !same {
		t.Errorf("calls\n%q\nwant\n%q", got, want)
	}

	e := wantError(t, s.Prefetch(p, n, d), "cuMemPrefetchAsync", ErrInvalidValue)
	if e.Detail != "65536 bytes to GPU 0" {
		t.Errorf("detail %q", e.Detail)
	}
	e = wantError(t, d.Advise(p, n, UnsetReadMostly, nil), "cuMemAdvise", ErrInvalidValue)
	if e.Detail != "advice 2 for 65536 bytes and the host" {
		t.Errorf("detail %q", e.Detail)
	}
	wantError(t, s.Prefetch(m, n+1, nil), "cuMemPrefetchAsync", ErrInvalidValue)
	log()
	wantError(t, s.Prefetch(m, -1, nil), "cuMemPrefetchAsync", ErrInvalidValue)
	wantError(t, d.Advise(m, -1, SetReadMostly, nil), "cuMemAdvise", ErrInvalidValue)
	wantError(t, d.Advise(m, n, 0, nil), "cuMemAdvise", ErrInvalidValue)
	wantError(t, d.Advise(m, n, 7, nil), "cuMemAdvise", ErrInvalidValue)
	if lines := log(); len(lines) > 0 {
		t.Errorf("the driver was called: %q", lines)
	}

	must(t, s.BeginCapture(Relaxed))
	wantError(t, s.Prefetch(m, n, d), "cuMemPrefetchAsync", ErrCaptureUnsupported)
	_, err := s.EndCapture()
	wantError(t, err, "cuStreamEndCapture", ErrCaptureInvalidated)
	must(t, d.Free(m))
	must(t, d.Free(p))
	must(t, s.Close())
	must(t, other.Close())

	// A driver from before these functions works, without them.
	t.Cleanup(func() { must(t, open(libFiles...)) })
	t.Setenv("FAKECUDA_VERSION", "12000")
	must(t, open(testkit.BuildCUDA(t, t.TempDir(),
		testkit.WithoutSymbols("cuMemPrefetchAsync_v2", "cuMemAdvise_v2")...)))
	old := try(Open(0))(t)
	s, m = try(old.NewStream(0))(t), try(old.MallocManaged(n))(t)
	const text = "the NVIDIA driver supports CUDA 12.0, this call needs 12.2 or later"
	for op, err := range map[string]error{"cuMemPrefetchAsync": s.Prefetch(m, n, old),
		"cuMemAdvise": old.Advise(m, n, SetReadMostly, nil)} {
		if e := wantError(t, err, op, ErrNotSupported); e.Detail != text {
			t.Errorf("detail %q", e.Detail)
		}
	}
	must(t, old.Free(m))
	must(t, old.Close())
}
