package spmdtest

import (
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/internal/own"
)

// NothingIsLeft calls round so many times. It fails if that leaves anything open of the World, a
// goroutine, or descriptors and memory that grow in each of ten turns: now and then Go keeps
// objects of goroutines that have ended. round closes what it opens.
//
// Collective over the ranks of w, which are goroutines of a process that runs no other test.
func NothingIsLeft(t *testing.T, w *spmd.World, rounds int, round func() error) {
	t.Helper()
	for turn, grows := 1, true; grows; turn++ {
		before := count(t, w, nil)
		for range rounds {
			Must(t, round())
		}
		after := count(t, w, before)
		files, goroutines := after.files-before.files, after.goroutines-before.goroutines
		objects, bytes := after.objects-before.objects, after.bytes-before.bytes
		grows = files > 0 || objects > 100+rounds/4 || bytes > 64<<10+8*rounds
		if !maps.Equal(before.opened, after.opened) || goroutines > 0 || grows && turn == 10 {
			t.Errorf("rank %d: open were %v, are %v; %d rounds leave %d goroutines, %d files, %d objects with "+
				"%d bytes on the heap", w.Rank(), before.opened, after.opened, rounds, goroutines,
				files, objects, bytes)
			grows = false
		}
		var err error
		grows, err = hostdata.Broadcast(w.Comm(), grows, 0)
		Must(t, err)
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
	c := &counted{opened: own.Opened(w)}
	if w.Rank() == 0 {
		late := time.Now().Add(timeout())
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
