package testkit

import "testing"

// Allocations returns how often fn allocates: the least of 50 runs. So it leaves out what
// goroutines beside it allocate meanwhile, such as a rank's watch while other programs have the
// cores. It calls fn 100 times, on every rank.
func Allocations(fn func()) float64 {
	least := testing.AllocsPerRun(1, fn)
	for range 49 {
		least = min(least, testing.AllocsPerRun(1, fn))
	}
	return least
}
