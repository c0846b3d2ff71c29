package route

import (
	"math"
	"slices"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

// A collective has three ways: NCCL's plain algorithms, NCCL's symmetric kernels, or one kernel
// that reads and writes the memory of the other ranks' GPUs.
//
// NCCL's symmetric kernels belong to a transport of their own (transport.Registrar, Symmetric),
// beside the one that carries everything else. NCCL has none for float64, integers and other
// operations than sums. It takes longer to be called than a kernel between peers.
//
// If NVLink joins the GPUs, kernels between peers carry all collectives whose parts they take, and
// small messages. Symmetric kernels carry sizes of a table. A size has one way in graphs and in
// calls, since each way adds up in another order.

// span is the sizes of the larger buffer of a rank, in bytes, that symmetric kernels carry.
type span struct{ from, to int }

// spans has the span of each call that NCCL has symmetric kernels for.
type spans [coll.Kinds]span

var (
	allSizes = span{0, math.MaxInt}
	// always is --symmetric always.
	always = spans{coll.AllReduce: allSizes, coll.AllGather: allSizes, coll.ReduceScatter: allSizes}
)

const mib, above = 1 << 20, math.MaxInt

// measured are the machines on which symmetric kernels are faster than NCCL's plain algorithms, and
// where: GPUs that NVLink joins, by the driver's name, and ranks of a communicator on one node.
// bench ways prints a row. What is not here takes the plain algorithms.
//
// H100: NCCL 2.28.3, 8 bytes to 256 MiB by factors of 2. H200: NCCL 2.28.3, 2 and 4 ranks, to 512
// MiB by factors of 4; all-gathers and reduce-scatters of 4 to 16 MiB.
var measured = []struct {
	gpus  []string
	ranks int
	spans
}{
	{[]string{"NVIDIA H100 80GB HBM3", "NVIDIA H200"}, 2,
		spans{coll.AllReduce: {2 * mib, 16 * mib}, coll.AllGather: {2 * mib, 8 * mib},
			coll.ReduceScatter: {2 * mib, 16 * mib}}},
	{[]string{"NVIDIA H100 80GB HBM3"}, 3, spans{coll.AllReduce: {2 * mib, 4 * mib}, coll.AllGather: {mib, above}}},
	{[]string{"NVIDIA H100 80GB HBM3", "NVIDIA H200"}, 4,
		spans{coll.AllReduce: {2 * mib, 16 * mib}, coll.AllGather: {mib, above},
			coll.ReduceScatter: {2 * mib, 32 * mib}}},
}

// chooseSpans says what symmetric kernels carry for the communicator; nil if that is nothing. On
// several nodes only --symmetric always says that they reach as far.
//
// Collective over the communicator.
func (r *Router) chooseSpans() (*spans, error) {
	switch r.env.Symmetric {
	case "always":
		return &always, nil
	case "never":
		return nil, nil
	}
	gpu := r.env.GPU.Dev.Name()
	row := 0
	for row < len(measured) && (measured[row].ranks != r.size || !slices.Contains(measured[row].gpus, gpu)) {
		row++
	}
	same, err := control.Range(r.host, int64(r.env.Node*(len(measured)+1)+row))
	if err != nil || !same.One() || row == len(measured) {
		return nil, err
	}
	return &measured[row].spans, nil
}

// bySymmetric reports whether symmetric kernels carry a call.
func (r *Router) bySymmetric(c *coll.Call, memory transport.Memory) bool {
	const both = transport.FromSymmetric | transport.IntoSymmetric
	if r.windows == nil || memory&both != both || !r.windows.Gains(c.Kind, c.Type, c.Op) {
		return false
	}
	n, s := c.N*c.Type.Size(), r.spans[c.Kind]
	if c.Kind == coll.ReduceScatter && n%16 != 0 && r.spans != &always {
		return false // parts that are not aligned take 1.7 times as long
	}
	if c.Kind != coll.AllReduce {
		n *= r.size
	}
	return s.from <= n && n <= s.to
}
