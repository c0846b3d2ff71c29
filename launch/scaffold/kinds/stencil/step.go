package main

import "lockstep/spmd"

// rate is how much of the difference between two neighbours flows in a step; above 1/2 a rod would
// not settle.
const rate = 0.25

// The command writes kernels_spmd.go: flow in CUDA C++, for GPUs, and launchFlow, which launches
// it. On the host flow itself runs.
//
//go:generate go run lockstep/spmd/spmdgen

// flow computes point i one step later; u and next have one point more on either side, the halo.
//
//spmd:kernel
func flow(i int, next, u []float64) {
	at := i + 1
	next[at] = u[at] + rate*(u[at-1]-2*u[at]+u[at+1])
}

// newRod returns room for n points of a rod, and for one more on either side, the halo. The ranks
// on the left and right put copies of their points there. All points are 0. In the halo beyond the
// ends of the rod they stay 0: the ends are kept cold.
func newRod(w *spmd.World, n int) (spmd.Buffer[float64], error) {
	u, err := spmd.Alloc[float64](w, n+2)
	if err != nil {
		return u, err
	}
	return u, u.SetAll(0)
}

// step enqueues next = u one step later, on s, the stream of c. It fills the halo of u first.
//
// Collective over c.
func step(c spmd.Comm, s *spmd.Stream, next, u spmd.Buffer[float64]) error {
	if err := exchange(c, u); err != nil {
		return err
	}
	return launchFlow(s, u.Len()-2, next, u)
}

// exchange fills the halo of u with the nearest points of the ranks on its left and right, and
// sends them its own.
//
// Collective over c.
func exchange(c spmd.Comm, u spmd.Buffer[float64]) error {
	n := u.Len() - 2
	left, right := c.Rank()-1, c.Rank()+1
	if left < 0 {
		left = spmd.None // an end of the rod: nothing is sent there, and the halo stays as it is
	}
	if right == c.Size() {
		right = spmd.None
	}
	// The calls of a group start together. One after the other, two ranks could wait for each other
	// for ever.
	return c.Group(func() error {
		if err := spmd.SendRecv(c, u.Slice(0, 1), left, u.Slice(n, n+1), right); err != nil {
			return err
		}
		return spmd.SendRecv(c, u.Slice(n+1, n+2), right, u.Slice(1, 2), left)
	})
}
