package spmd

import (
	"context"
	"fmt"

	"lockstep/spmd/internal/world"
)

// Local runs run on a number of ranks that are goroutines of this process. Each has a World of its
// own, with a device, streams and memory, and run is the same as Main's. There is no MPI. If the
// machine has GPUs, each rank has one of its own; Local fails if there are too few. Without GPUs,
// or with Config.Device "host", a rank has host memory. On the host a job starts and ends in less
// than a millisecond. A process may run several jobs, one after another or at the same time.
//
// A rank that fails or panics ends all ranks. The others get an error from calls that wait for it,
// and the ctx of run ends and says why. The job also ends if a rank returns while another waits for
// it, and if ranks wait for each other. So it does if a collective does not end within
// Config.Timeout. When all ranks have returned, Local returns the error of the first rank that
// failed, with its number.
//
// Local leaves behind ranks that do not return within five seconds after a failure. Until all have
// returned the memory of each rank stays, since calls read the memory of other ranks. Memory of
// failed ranks on GPUs stays taken until the process ends.
//
// The ranks share the resources of the process, such as the working folder, and divide its cores.
func Local(ctx context.Context, cfg Config, ranks int, run func(ctx context.Context, w *World) error) error {
	if ranks < 1 {
		return Usage(fmt.Errorf("%d ranks: want 1 or more", ranks))
	}
	return world.Local(ctx, cfg.start(nil), ranks, nil, inWorld(run))
}

func inWorld(run func(ctx context.Context, w *World) error) func(context.Context, *world.World) error {
	return func(ctx context.Context, in *world.World) error { return run(ctx, (*World)(in)) }
}
