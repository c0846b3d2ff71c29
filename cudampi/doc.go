// Package cudampi is MPI over memory given by address. It adds the calls that package
// github.com/sbromberger/gompi lacks, on the same libmpi, and guards for its faults. gompi starts
// and stops MPI; all else runs on a duplicate of MPI_COMM_WORLD, so it never mixes with messages of
// the application's own.
//
//	c, err := cudampi.Start()
//	p := unsafe.Pointer(&x[0])
//	err = c.AllReduce(p, p, len(x), elem.Float32, elem.Sum)
//	...
//	err = cudampi.Stop()
//
// Messages of a P2P may come from and go to a GPU's memory of cuda.Malloc, if the MPI library takes
// it: see CUDAAware.
//
// Every call of a Comm keeps these rules:
//
//   - Memory is given by address, destination first, with a number of elements, not bytes. The
//     address may be nil if there are no elements. Memory that a rank does not use may be nil, such
//     as dst of a Reduce elsewhere than on the root.
//   - Every call blocks until this rank's part is done; its result is then valid. A Comm knows no
//     streams.
//   - Every rank of the Comm makes collective calls, in the same order, with equal counts, type, op
//     and root. A call for no elements at all returns at once, without communication; a message of
//     no elements is sent all the same.
//   - dst and src may not overlap, but for the in-place form that a collective names, which every
//     rank uses or none.
//   - Counts have no limit but memory: counts that MPI's int does not hold are done in parts, or by
//     derived datatypes.
//   - Float16 and BFloat16 are reduced in float32 and rounded once, at the end. Avg divides the sum
//     by the number of ranks; for integers the sum wraps round first and the division truncates
//     towards zero.
//   - A call that succeeds allocates no Go memory and is one cgo call, as long as its counts fit
//     MPI's.
//   - A call that fails gives a *ccall.Error with the C function, the rank in this Comm, the file
//     and line of the application, a Result, and both numbers if two disagree.
//   - MPI itself never ends the process (the error handler is MPI_ERRORS_RETURN). Refusals (a bad
//     count, rank, root, type or op) are local and send nothing. After a failure inside MPI the
//     other ranks may still be waiting: end the job by Abort.
//   - One thread at a time enters MPI (MPI_THREAD_SERIALIZED), whichever it is: the caller sees to
//     that.
//
// Source: mpi.h, MPI 3.1.
package cudampi
