package spmdtest

import (
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/library"
)

// NothingIsLeft calls round some times, and then so many times again. It fails if that leaves
// anything open of the World, a descriptor, a goroutine, or memory that grows with the rounds.
// round closes what it opens.
//
// Collective over the ranks of w, which are goroutines of this process. No other test runs beside
// it.
func NothingIsLeft(t *testing.T, w *spmd.World, rounds int, round func() error) {
	t.Helper()
	for range max(10, rounds/50) {
		Must(t, round())
	}
	before := count(t, w, nil)
	for range rounds {
		Must(t, round())
	}
	after := count(t, w, before)
	if !maps.Equal(before.opened, after.opened) {
		t.Errorf("rank %d: open were %v, are %v", w.Rank(), before.opened, after.opened)
	}
	if after.files > before.files || after.goroutines > before.goroutines {
		t.Errorf("%d files and %d goroutines were there, %d and %d are", before.files, before.goroutines,
			after.files, after.goroutines)
	}
	// Go keeps some objects of goroutines that have ended or waited: 128 of a kind for each of its
	// processors.
	if objects, bytes := after.objects-before.objects, after.bytes-before.bytes; objects > 1500+rounds/4 ||
		bytes > 2<<20+8*rounds {
		t.Errorf("%d objects with %d bytes on the heap are left of %d rounds", objects, bytes, rounds)
	}
}

// counted counts what is open at a moment. Only rank 0 knows the process's part.
type counted struct {
	opened                            map[string]int
	files, goroutines, objects, bytes int
}

// count counts on all ranks at the same time. It waits for things that end by themselves a little
// later, down to the count before.
func count(t *testing.T, w *spmd.World, before *counted) *counted {
	t.Helper()
	Must(t, spmd.Barrier(w.Comm()))
	c := &counted{opened: library.Opened(w)}
	if w.Rank() == 0 {
		late := time.Now().Add(Timeout())
		for before != nil && runtime.NumGoroutine() > before.goroutines && time.Now().Before(late) {
			time.Sleep(time.Millisecond)
		}
		list, err := os.ReadDir("/proc/self/fd")
		Must(t, err)
		runtime.GC()
		runtime.GC() // what has a finalizer, or lay in a sync.Pool
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		c.files, c.goroutines, c.objects, c.bytes = len(list), runtime.NumGoroutine(),
			int(m.Mallocs-m.Frees), int(m.HeapAlloc)
	}
	Must(t, spmd.Barrier(w.Comm()))
	return c
}
