// Package spmd is for programs of which one copy runs on each GPU, or on each part
// of a machine without GPUs, and which compute together: SPMD, single program,
// multiple data.
//
// The same binary is started N times by mpirun or Slurm, or once by hand. Main
// connects the copies, the ranks, and calls the program on each with its World.
// Data lives in Buffers, in the memory of the rank's device. Work is enqueued on
// Streams: kernels, copies, matrix products, and collectives between the ranks.
//
//	func main() {
//		fs := pflag.NewFlagSet("hello", pflag.ExitOnError)
//		n := fs.Int("n", 1<<20, "elements on each rank")
//		spmd.Main(fs, func(ctx context.Context, w *spmd.World) error {
//			x, err := spmd.Alloc[float32](w, *n)
//			if err != nil {
//				return err
//			}
//			defer x.Free()
//			if err := x.SetAll(float32(w.Rank())); err != nil {
//				return err
//			}
//			if err := spmd.AllReduce(w.Comm(), x, x, spmd.Sum); err != nil { // finished on return
//				return err
//			}
//			w.Log().Info().Float32("sum", x.At(0)).Msg("done") // rank 0 only, unless --log-ranks all
//			return nil
//		})
//	}
//
// Where there is a GPU, buffers are in its memory, streams are CUDA's and collectives
// NCCL's; elsewhere the same program runs on host memory through MPI. A Kernel is
// CUDA C++ and, beside it, the Go function that does the same on the host. The
// difference that a program sees is that only the host's memory has slices: CopyFrom,
// CopyTo, SetAll, At and Set work everywhere, Host for what AllocPinned and AllocManaged
// return. These methods of a Buffer block; functions such as Copy and Fill take a Stream,
// and enqueue.
//
// # Kinds of memory
//
// On the host all of these are the same memory. On a GPU:
//
//   - Alloc: the GPU's own. Kernels, copies and collectives are fastest there.
//   - AllocSymmetric: the same, registered with NCCL, for small collectives of many ranks.
//   - AllocPinned: the host's, which the GPU copies from and to by itself, and reads from
//     afar. Host gives its elements.
//   - AllocManaged: pages move to who uses them, host or GPU; Host gives the elements.
//     Buffer.Prefetch moves them ahead, in the order of a stream, and Buffer.Advise says
//     how they will be used. Not more than what is free on the GPU.
//
// # What holds for every call
//
// Collective: a call so marked is made by every rank of the communicator, in the
// same order as its other collective calls and with matching arguments. A rank
// that does not call leaves the others waiting.
//
// When a result is valid: a collective on a Comm is finished when it returns. On
// comm.On(stream), and for everything else that takes a Stream, the work is only
// enqueued: its input must be valid in that stream, its result is valid for later
// work in that stream, and for the host after stream.Synchronize. A few numbers in
// pinned memory it sees sooner by Await.
//
// Collectives: dst may be src, or where a collective says so this rank's part of
// it, then on every rank; otherwise the two must not overlap. Unequal lengths, a
// root or peer out of range, freed buffers and buffers of another world are refused
// before anything is sent, with both numbers and the caller's file and line.
// Buffers may have any number of elements, beyond 2^31 too.
//
// Nothing to say: on the host and on GPUs alike a collective for no elements is a
// call of every rank that moves nothing, and may not synchronize them. In a V form a
// rank whose part has none calls as the others do. A message of none is a message: Recv
// waits for it, and it takes its place among others. None instead of a rank leaves a
// message out on this rank. Whether a collective is worth while at all the ranks ask
// each other by Any or AllReduceIf.
//
// The host's own numbers and settings are reduced, broadcast and gathered without
// Buffers: AllReduceNumber, AllReduceSlice, BroadcastValue and their like block, and
// wait for no stream.
//
// Once a stream and a communicator have run a call, the next one allocates no Go memory on
// the host, nor on GPUs through NCCL and kernels between peers. Where the host carries the
// memory of GPUs (mpi-aware, host-staged), and with --check, a call allocates some.
//
// Between streams there is no order but that of Stream.After and Stream.Wait; Pipeline
// has stages on several streams work on pieces at the same time. On a
// GPU the collectives of one communicator run in the order in which they were
// issued, and those of another wait for them. On the host calls into MPI run one at
// a time, in the order in which the program issued them, whatever streams they are
// on. So a collective on one stream never runs at the same time as one on another,
// but always beside the computing, and a blocking one waits for those enqueued
// before it and for what they wait for.
//
// Lengths come from buffers, the destination first. They are in elements; what is
// in bytes says Bytes. Matrices are row-major. Times are in microseconds where a
// name says US, rates in 1e9 bytes a second.
//
// Errors name the place in the application, the rank, the call and the library's
// status. Misuse (unequal lengths, freed buffers, ranks out of range) is refused
// before anything is sent. An error on one rank is an error of the job: return it
// from the function given to Main, which ends the job on every rank.
//
// One goroutine drives a rank: issue collectives from one goroutine, so that their
// order is the same on every rank. Other goroutines may prepare data.
//
// Free gives back the memory of a Buffer, and Close ends whatever else was opened. A second
// call of either does nothing. Main and World.Close end what a program has left.
//
// Package checkpoint saves and loads a program's state. Package parallel has what a
// training loop on several ranks needs, package timing measures steps. Package spmdtest runs
// tests on several ranks. Package host has what the host function of a Kernel is made of.
package spmd
