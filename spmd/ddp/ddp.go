// Package ddp is what a data-parallel training loop needs beside collectives: replicas that start alike and are checked to
// stay so, the reduction of gradients while the backward pass goes on, the clipping of their norm, and loops over uneven
// data that end on all ranks together.
package ddp

import (
	"lockstep/spmd"
	"lockstep/spmd/internal/inside"
)

// The doors of package spmd.
var (
	worldOf  = inside.Comm.(func(spmd.Comm, string) (*spmd.World, error))
	fail     = inside.Fail.(func(*spmd.World, error))
	overlap  = inside.Overlap.(func(a, b any) bool)
	join     = inside.Join.(func(a, b any) (any, bool))
	hash     = inside.Hash.(func(s *spmd.Stream, sum spmd.Buffer[uint64], b any) error)
	clipNorm = inside.ClipNorm.(func(*spmd.Stream, spmd.Buffer[float32], float64, spmd.Buffer[float32]) error)
)

// ClipNorm enqueues on s: norm[0] = the Euclidean norm of g; and where that is
// above maxNorm, g scaled so that its norm is maxNorm. maxNorm <= 0 only
// measures. norm has one element. The result is the same on ranks whose g are.
func ClipNorm(s *spmd.Stream, g spmd.Buffer[float32], maxNorm float64, norm spmd.Buffer[float32]) error {
	return clipNorm(s, g, maxNorm, norm)
}
