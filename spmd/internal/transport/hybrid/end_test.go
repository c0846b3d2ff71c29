package hybrid

import (
	"runtime"
	"sync"
	"testing"

	"lockstep/internal/campaign"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

// TestEndOfMemory: no pointer is one past the end of memory, where the collector, which looks at any moment, finds none of a
// program's and ends it. Memory of whole pages ends where there may be nothing.
func TestEndOfMemory(t *testing.T) {
	step := 4
	if campaign.More(t, 18, "sizes of memory that ends where a page does"); campaign.All() {
		step = 1
	}
	each(t, func(t *testing.T, c comm) {
		over, wait := make(chan struct{}), sync.WaitGroup{}
		wait.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					runtime.GC()
				}
			}
		})
		for pages := 1; pages <= 24; pages += step {
			n := 4096 * pages // of float32, two pages
			src, dst := make([]elem.F16, n), make([]elem.F16, n)
			to, from := commtest.Ptr(dst), commtest.Ptr(src)
			commtest.Must(t, c.Reduce(to, from, n, elem.Float16, elem.Sum, pages%c.Size()))
			commtest.Must(t, c.ExScan(to, from, n, elem.Float16, elem.Sum))
			counts := make([]int, c.Size())
			counts[pages%c.Size()] = n
			commtest.Must(t, c.ReduceScatterV(to, from, counts, elem.Float16, elem.Sum))
			commtest.Must(t, c.GatherV(to, from, counts, elem.Float16, pages%c.Size()))
			commtest.Must(t, c.ScatterV(to, from, counts, elem.Float16, pages%c.Size()))
		}
		close(over)
		wait.Wait()
	})
}
