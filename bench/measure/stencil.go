package measure

import (
	"fmt"
	"runtime"
	"strconv"
)

// StencilPeer is the name of c/stencil.c's sides. It begins with that of the peer.
const StencilPeer = "MPI from C, and OpenMP"

// CStencil returns the command line of c/stencil.c on n ranks, which divide the cores.
func (b *Harness) CStencil(n, rows, columns, steps, iters, warmup int) ([]string, error) {
	program, err := b.C("stencil", "mpicc", "-march=native", "-fopenmp", "-lm")
	if err != nil {
		return nil, err
	}
	cmd := append(Unbound(n), "env", fmt.Sprintf("OMP_NUM_THREADS=%d", max(1, runtime.NumCPU()/n)), program)
	for _, v := range []int{rows, columns, steps, iters, warmup} {
		cmd = append(cmd, strconv.Itoa(v))
	}
	return cmd, nil
}

// Unbound returns mpirun for ranks that may use every core. A single one would otherwise
// have only one.
func Unbound(n int) []string { return append(MPIRun(n), "--bind-to", "none") }
