package cuda

import (
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"
)

// fakeIPC is the part that one process can see; package cudampi opens the memory of others.
func fakeIPC(t *testing.T) {
	t.Setenv("FAKECUDA_SHARED", "1")
	t.Setenv("FAKECUDA_DEVICES", "2")
	d := openFake(t)
	p := try(d.Malloc(1000))(t)
	whole, part := try(d.IPCHandle(p))(t), try(d.IPCHandle(unsafe.Add(p, 300)))(t)
	if whole.Offset != 0 || part.Offset != 300 || whole.Allocation != part.Allocation {
		t.Errorf("handles at %d and %d, of one allocation: %v", whole.Offset, part.Offset,
			whole.Allocation == part.Allocation)
	}
	_, err := d.OpenIPC(whole)
	wantError(t, err, "cuIpcOpenMemHandle", ErrInvalidContext) // one's own
	must(t, d.Free(p))
	_, err = d.IPCHandle(p)
	wantError(t, err, "cuMemGetAddressRange", ErrNotFound)

	next := try(Open(1))(t) // inside the process
	must(t, d.Reach(next.Bind().Context))
	must(t, d.Reach(next.Bind().Context))
	must(t, d.Reach(d.Bind().Context))
	t.Setenv("FAKECUDA_PEERS", "0")
	wantError(t, next.Reach(d.Bind().Context), "cuCtxEnablePeerAccess", ErrPeerAccessUnsupported)
	must(t, next.Close())

	other := try(UUIDOf(1))(t)
	for _, c := range []struct {
		uuid, peers, access, atomics string
	}{
		{d.UUID(), "0", "", ""},
		{other, "1", "", ""},
		{other, "2", "", "no native atomic operations to GPU 1"},
		{other, "0", "no peer access to GPU 1", "no native atomic operations to GPU 1"},
		{"GPU-of-nobody", "1", "GPU-of-nobody is not visible", "GPU-of-nobody is not visible"},
	} {
		t.Setenv("FAKECUDA_PEERS", c.peers)
		ok, why, err := d.CanAccess(c.uuid)
		if err != nil || ok != (c.access == "") || !strings.Contains(why, c.access) {
			t.Errorf("%s, peers %s: %v, %q, %v", c.uuid, c.peers, ok, why, err)
		}
		ok, why, err = d.NativeAtomics(c.uuid)
		if err != nil || ok != (c.atomics == "") || !strings.Contains(why, c.atomics) {
			t.Errorf("%s, peers %s, atomics: %v, %q, %v", c.uuid, c.peers, ok, why, err)
		}
	}
}

func fakeRegisterHost(t *testing.T) {
	d := openFake(t)
	mem := make([]byte, 4096)
	p := unsafe.Pointer(&mem[0])
	must(t, d.RegisterHost(p, 4096))
	e := wantError(t, d.RegisterHost(p, 4096), "cuMemHostRegister", Result(712))
	if !strings.Contains(e.Detail, "4096 bytes") {
		t.Errorf("detail %q", e.Detail)
	}
	must(t, d.UnregisterHost(p))
	wantError(t, d.UnregisterHost(p), "cuMemHostUnregister", Result(713))
	must(t, d.RegisterHost(nil, 0))
	wantError(t, d.RegisterHost(p, -1), "cuMemHostRegister", ErrInvalidValue)
}

// fakeValues: a stream waits for the host and for another stream, and commands behind a wait come
// after it.
func fakeValues(t *testing.T) {
	t.Setenv("FAKECUDA_DELAY", "0")
	d := openFake(t)
	s, other := try(d.NewStream(0))(t), try(d.NewStream(0))(t)
	word, out := try(d.MallocHost(4))(t), try(d.MallocHost(4))(t)
	flag, result := (*atomic.Uint32)(word), (*atomic.Uint32)(out)
	flag.Store(^uint32(0)) // counts past 2^32
	result.Store(7)
	must(t, s.WaitValue(word, 1))
	must(t, s.Fill(out, 4, 8, 1))
	if done, err := s.Query(); done || err != nil || result.Load() != 7 {
		t.Fatalf("the stream does not wait: %v, %v, %d", done, err, result.Load())
	}
	must(t, other.WriteValue(word, 0))
	must(t, other.Synchronize())
	if done, err := s.Query(); done || err != nil {
		t.Fatalf("the stream waits for too little: %v, %v", done, err)
	}
	must(t, other.WriteValue(word, 1))
	must(t, s.Synchronize())
	if result.Load() != 8 {
		t.Errorf("behind the wait: %d", result.Load())
	}
	must(t, d.FreeHost(word))
	must(t, d.FreeHost(out))
	must(t, s.Close())
	must(t, other.Close())
}

// fakeDelay: with delays, streams run beside the host, and events order them.
func fakeDelay(t *testing.T) {
	t.Setenv("FAKECUDA_DELAY", "0")
	d := openFake(t)
	a, b := try(d.NewStream(0))(t), try(d.NewStream(0))(t)
	word, data, out := try(d.MallocHost(4))(t), try(d.Malloc(4))(t), try(d.MallocHost(4))(t)
	flag, result := (*atomic.Uint32)(word), (*atomic.Uint32)(out)
	flag.Store(0)
	result.Store(1)
	must(t, a.WaitValue(word, 1))
	must(t, a.Fill(data, 4, 5, 1))
	e := try(d.NewEvent())(t)
	must(t, e.Record(a))
	must(t, b.Wait(e))
	must(t, b.Copy(out, data, 4))
	for range 3 {
		if done, err := e.Query(); done || err != nil {
			t.Fatalf("the event is %v, %v", done, err)
		}
	}
	if result.Load() != 1 {
		t.Fatal("the second stream did not wait")
	}
	flag.Store(1)
	must(t, b.Synchronize())
	if done, err := e.Query(); !done || err != nil || result.Load() != 5 {
		t.Fatalf("the event is %v, %v, the result %d", done, err, result.Load())
	}
	must(t, e.Synchronize())
	must(t, d.Free(data))
	must(t, d.FreeHost(word))
	must(t, d.FreeHost(out))
	must(t, a.Close())
	must(t, b.Close())
}

// An event is recorded anew while an earlier record has not been passed. A stream waits for the
// last record at the time of its Wait. The event tells of its last record alone.
func fakeRecordsAnew(t *testing.T) {
	t.Setenv("FAKECUDA_DELAY", "0")
	d := openFake(t)
	var streams [4]*Stream
	for i := range streams {
		streams[i] = try(d.NewStream(0))(t)
	}
	held, free, afterHeld, afterFree := streams[0], streams[1], streams[2], streams[3]
	word := try(d.MallocHost(4))(t)
	(*atomic.Uint32)(word).Store(0)
	e := try(d.NewEvent())(t)
	must(t, held.WaitValue(word, 1))
	must(t, e.Record(held))
	must(t, afterHeld.Wait(e))
	must(t, e.Record(free))
	must(t, free.Synchronize())
	if done, err := e.Query(); !done || err != nil {
		t.Errorf("after its last record the event is %v, %v", done, err)
	}
	for range 3 {
		if done, err := afterHeld.Query(); done || err != nil {
			t.Fatalf("a stream that waits for the first record is over: %v, %v", done, err)
		}
	}
	(*atomic.Uint32)(word).Store(1)
	must(t, held.Synchronize()) // the first record is passed last
	if done, err := e.Query(); !done || err != nil {
		t.Fatalf("after its first record the event is %v, %v", done, err)
	}
	must(t, afterFree.Wait(e))
	must(t, afterFree.Synchronize())
	must(t, afterHeld.Synchronize())
	must(t, d.FreeHost(word))
	for _, s := range streams {
		must(t, s.Close())
	}
}
