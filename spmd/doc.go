// Package spmd is for programs that compute together in several copies: SPMD, single program,
// multiple data. One copy runs on each GPU, or on each part of a machine without GPUs.
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
// On a GPU buffers are in its memory, streams are CUDA's and collectives NCCL's. Without one the
// same program runs on host memory through MPI. A Kernel is CUDA C++ and, beside it, the Go
// function that does the same on the host.
//
// A program sees one difference: only the host's memory has slices. CopyFrom, CopyTo, SetAll, At
// and Set work for all buffers, and Host for buffers of AllocPinned and managed.Alloc. These
// methods block. Functions such as Copy and Fill take a Stream, and enqueue.
//
// # Kinds of memory
//
// On the host all of these are the same memory. On a GPU:
//
//   - Alloc: the GPU's own. Kernels, copies and collectives are fastest there.
//   - AllocSymmetric: the same, registered with NCCL, for small collectives of many ranks.
//   - AllocPinned: the host's, which the GPU copies from and to by itself, and reads from afar.
//     Host gives its elements.
//   - managed.Alloc: pages move to the host or GPU that uses them. Host gives the elements.
//     managed.Prefetch moves pages ahead, in the order of a stream, and managed.Advise says how
//     they will be used. A buffer is not larger than the free memory of the GPU.
//
// # What holds for every call
//
// Collective: every rank of the communicator makes a call so marked, in the same order as its other
// collective calls and with matching arguments. A rank that does not call leaves the others
// waiting.
//
// When a result is valid: a collective on a Comm is finished when it returns. A collective on
// comm.On(stream), and every other call that takes a Stream, is only enqueued. Its input must be
// valid in that stream. Its result is valid for later work in that stream, and for the host after
// stream.Synchronize. The host sees a few numbers in pinned memory sooner by Await.
//
// Collectives: dst may be src, or this rank's part of it if the collective says so. It is then so
// on every rank. Otherwise the two must not overlap. Buffers may have any number of elements,
// beyond 2^31 too.
//
// No elements: every rank makes a collective for no elements, which moves nothing and may not
// synchronize the ranks. In a V form a rank with an empty part calls as the others do. A message of
// no elements is a message: Recv waits for it, and it takes its place among others. None instead of
// a rank leaves a message out on this rank. By hostdata.Any or AllReduceIf the ranks ask each
// other whether a collective is worth while.
//
// Panics: At, Set, Host, Slice and View panic where Go's slices do, out of range. At, Set and Host
// also panic if the buffer was freed, or the GPU or a stream that they wait for has failed. All
// other calls return an error.
//
// Numbers and settings of the host need no Buffers: package hostdata reduces, broadcasts and
// gathers them. Its calls block, and wait for no stream.
//
// Go memory: after their first call, calls of a stream and a communicator allocate none. This holds
// on the host, and on GPUs through NCCL and kernels between peers. If the host carries the memory
// of GPUs (mpi-aware, host-staged), and with --check, a call allocates some.
//
// Order: only Stream.After and Stream.Wait order work of two streams. Pipeline has stages on
// several streams work on pieces at the same time. On a GPU the collectives of one communicator run
// in the order in which they were issued, and collectives of another communicator wait for them. On
// the host calls into MPI run one at a time, in the order in which the program issued them, on all
// streams.
//
// So two collectives never run at the same time, but they run beside the computing. A blocking
// collective waits for the collectives that were enqueued before it, and for the work that those
// wait for.
//
// Units: lengths come from buffers, the destination first. They are in elements; a name with Bytes
// is in bytes. Matrices are row-major. A name with US is in microseconds. Rates are in 1e9 bytes a
// second.
//
// Errors name the application's file and line, the rank, the call and the library's status. Misuse
// is refused before anything is sent, with both numbers: unequal lengths, a root or peer out of
// range, freed buffers, buffers of another world. An error on one rank is an error of the job:
// return it from the function given to Main, which ends the job on every rank.
//
// One goroutine drives a rank: issue collectives from one goroutine, so that their
// order is the same on every rank. Other goroutines may prepare data.
//
// Free gives back the memory of a Buffer, and Close ends whatever else was opened. A second call of
// either does nothing. Main and World.Close end whatever a program has left open.
//
// Package checkpoint saves and loads a program's state. Package parallel has what a training loop
// on several ranks needs, package telemetry measures steps. Package spmdtest runs tests on several
// ranks. Package host has building blocks for the host function of a Kernel.
package spmd
