package testkit

import "testing"

// Allocations returns how often fn allocates: the least of so many runs. So it leaves out what
// goroutines beside it allocate meanwhile, such as a rank's watch while other programs have the
// cores. It calls fn twice as often, on every rank.
func Allocations(runs int, fn func()) float64 {
	least := testing.AllocsPerRun(1, fn)
	for range runs - 1 {
		least = min(least, testing.AllocsPerRun(1, fn))
	}
	return least
}
