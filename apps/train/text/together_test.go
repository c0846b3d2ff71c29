package text

import (
	"bytes"
	"slices"
	"sync"
)

// together runs fn as n ranks of one group, in goroutines, and returns each one's error.
func together(n int, fn func(g Group) error) []error {
	var mu sync.Mutex
	cond := sync.NewCond(&mu)
	slots, taken, round := make([][]byte, n), 0, 0
	var result [][]byte
	exchange := func(rank int) func([]byte) ([][]byte, error) {
		return func(mine []byte) ([][]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			slots[rank] = bytes.Clone(mine)
			now := round
			if taken++; taken == n {
				result = slots
				slots, taken, round = make([][]byte, n), 0, round+1
				cond.Broadcast()
			}
			for round == now {
				cond.Wait()
			}
			return slices.Clone(result), nil
		}
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs[r] = fn(Group{Rank: r, Size: n, Exchange: exchange(r)}) })
	}
	wg.Wait()
	return errs
}
