package text

import (
	"sync"
	"sync/atomic"
)

// parallel calls fn(0) ... fn(n-1) from some goroutines and returns the error of the lowest index
// that failed. After an error no further call begins.
func parallel(threads, n int, fn func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Bool
	var mu sync.Mutex
	var wg sync.WaitGroup
	at, first := n, error(nil)
	for range min(max(threads, 1), n) {
		wg.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(i); err != nil {
					mu.Lock()
					if i < at {
						at, first = i, err
					}
					mu.Unlock()
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return first
}
