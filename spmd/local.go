package spmd

import (
	"context"
	"fmt"

	"lockstep/spmd/internal/world"
)

// Local runs run on a number of ranks that are goroutines of this process. Each has a World of its
// own, with a device, streams and memory, and run is the same as Main's. If the machine has GPUs,
// each rank has one of its own, or Local fails for want of GPUs; otherwise, or with Config.Device
// "host", it has host memory. There is no MPI. On the host a job starts and ends in less than a
// millisecond, and a process may run several, one after another or at the same time.
//
// A rank that fails or panics ends all. Ranks that wait for it get an error from their calls. run
// gets a ctx that ends with the job, and says why. So does a rank that returns while another waits
// for it, ranks that wait for each other, and a collective that does not end within Config.Timeout.
// Local returns the error of the first rank that failed, with its number, when all have returned.
//
// Local leaves behind ranks that do not return within five seconds after a failure. Until all have
// returned the memory of each stays, since calls read the others'. What failed ranks had on GPUs
// stays taken until the process ends.
//
// The ranks share what belongs to a process, such as the working folder, and divide its cores.
func Local(ctx context.Context, cfg Config, ranks int, run func(ctx context.Context, w *World) error) error {
	if ranks < 1 {
		return Usage(fmt.Errorf("%d ranks: want 1 or more", ranks))
	}
	return world.Local(ctx, cfg.start(nil), ranks, nil, inWorld(run))
}

// inWorld is run for the inside of a world.
func inWorld(run func(ctx context.Context, w *World) error) func(context.Context, *world.World) error {
	return func(ctx context.Context, in *world.World) error { return run(ctx, newWorld(in)) }
}
