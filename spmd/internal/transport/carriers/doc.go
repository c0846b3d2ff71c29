// Package carriers has what carries the calls of a communicator, each with the transport.Backend
// that opens it if that is chosen by its name:
//
//   - MPI: host memory through MPI, small calls through memory that the ranks of a node share
//   - NCCL: device memory through NCCL
//   - PeerKernels: device memory by kernels between GPUs of a node that reach each other
//   - Aware: device memory through an MPI that takes it; short collectives go through host memory
//   - Staged: device memory through host memory, by the communicator that the ranks have there in
//     any case; several ranks may share a GPU
package carriers
