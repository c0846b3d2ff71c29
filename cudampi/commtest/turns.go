package commtest

import (
	"slices"
	"testing"
	"time"
)

// Turns makes b.N calls on each rank. Rank 0 times them in turns of 200 and reports what a
// call took in the least and in the median turn: the system takes a core away now and then,
// which a turn is too short for.
func Turns(b *testing.B, rank int, call func() error) error {
	if rank > 0 {
		for range b.N {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	}
	const calls = 200
	var took []float64
	for done := 0; done < b.N; {
		n, began := min(calls, b.N-done), time.Now()
		for range n {
			if err := call(); err != nil {
				return err
			}
		}
		took = append(took, float64(time.Since(began))/float64(n))
		done += n
	}
	slices.Sort(took)
	b.ReportMetric(took[0], "least-ns")
	b.ReportMetric(took[len(took)/2], "median-ns")
	return nil
}
