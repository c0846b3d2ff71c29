package measure

import (
	"fmt"
	"slices"
	"strings"
)

// Operation is one collective of the sweep, without the call itself, which buffers.call makes.
type Operation struct {
	Name    string
	NCCL    string // nccl-tests' program for it, if there is one
	divides bool   // the elements are divided among the ranks
	// Bus is bus bandwidth over algorithm bandwidth on n ranks. Source: nccl-tests,
	// doc/PERFORMANCE.md and the GetBw functions of src/*.cu. nccl-tests has no ping-pong, which
	// moves a message from one rank to another as sendrecv does.
	Bus      func(n int) float64
	Places   []bool // whether it works in place
	modifies bool   // in place, a second call gives something else than the first
	least    int    // ranks that it needs
	trips    int    // messages of a call that wait for each other; the time is that of one
	torch    reach  // where torch.distributed has it

	dst, src func(all, part int) int            // elements of a rank's buffers
	gives    func(rank int) bool                // whether a rank fills src
	gets     func(rank int) bool                // whether a rank has a result
	result   func(at spot) (giver, element int) // the spot of src that an element of dst comes from
}

// reach is the devices on which a peer has an operation.
type reach int

const (
	everywhere reach = iota
	onGPUs
	nowhere
)

// Torch reports whether torch.distributed has the operation, on the host by gloo, or on GPUs.
func (op *Operation) Torch(onHost bool) bool {
	return op.torch == everywhere || op.torch == onGPUs && !onHost
}

// always reports whether the operation only works in place, so that nobody needs to say so.
func (op *Operation) always() bool { return !slices.Contains(op.Places, false) }

// spot is element i of the dst of a rank.
type spot struct{ rank, size, part, i int }

// everyone, as a giver, stands for the sum over all ranks.
const everyone = -1

func sums(s spot) (giver, element int)        { return everyone, s.i }
func partOfSums(s spot) (giver, element int)  { return everyone, s.rank*s.part + s.i }
func roots(s spot) (giver, element int)       { return root, s.i }
func partOfRoots(s spot) (giver, element int) { return root, s.rank*s.part + s.i }
func parts(s spot) (giver, element int)       { return s.i / s.part, s.i % s.part }
func partOfEach(s spot) (giver, element int)  { return s.i / s.part, s.rank*s.part + s.i%s.part }
func previous(s spot) (giver, element int)    { return (s.rank + s.size - 1) % s.size, s.i }

func all(all, _ int) int   { return all }
func part(_, part int) int { return part }

func anyRank(int) bool       { return true }
func rootOnly(rank int) bool { return rank == root }
func firstTwo(rank int) bool { return rank < 2 }

func whole(int) float64      { return 1 }
func others(n int) float64   { return float64(n-1) / float64(n) }
func twoTimes(n int) float64 { return 2 * others(n) }

var (
	outOfPlace = []bool{false}
	either     = []bool{false, true}
	inPlace    = []bool{true}
)

// These are the names of operations. allreduce to scatter are MPI's names, without the prefix.
const (
	allReduce     = "allreduce"
	reduce        = "reduce"
	broadcast     = "broadcast"
	allGather     = "allgather"
	reduceScatter = "reducescatter"
	allToAll      = "alltoall"
	gather        = "gather"
	scatter       = "scatter"
	sendRecv      = "sendrecv"
	pingPong      = "pingpong"
)

// Operations are all collectives of the sweep.
var Operations = []Operation{
	{Name: allReduce, NCCL: "all_reduce_perf", Bus: twoTimes, Places: either, modifies: true, least: 1, trips: 1,
		dst: all, src: all, gives: anyRank, gets: anyRank, result: sums},
	{Name: reduce, NCCL: "reduce_perf", Bus: whole, Places: either, modifies: true, least: 1, trips: 1,
		dst: all, src: all, gives: anyRank, gets: rootOnly, result: sums},
	{Name: broadcast, NCCL: "broadcast_perf", Bus: whole, Places: inPlace, least: 1, trips: 1,
		dst: all, src: all, gives: rootOnly, gets: anyRank, result: roots},
	{Name: allGather, NCCL: "all_gather_perf", divides: true, Bus: others, Places: either, least: 1, trips: 1,
		dst: all, src: part, gives: anyRank, gets: anyRank, result: parts},
	{Name: reduceScatter, NCCL: "reduce_scatter_perf", divides: true, Bus: others, Places: either, modifies: true,
		least: 1, trips: 1, dst: part, src: all, gives: anyRank, gets: anyRank, result: partOfSums, torch: onGPUs},
	{Name: allToAll, NCCL: "alltoall_perf", divides: true, Bus: others, Places: either, modifies: true, least: 1,
		trips: 1, dst: all, src: all, gives: anyRank, gets: anyRank, result: partOfEach, torch: onGPUs},
	{Name: gather, NCCL: "gather_perf", divides: true, Bus: others, Places: either, least: 1, trips: 1,
		dst: all, src: part, gives: anyRank, gets: rootOnly, result: parts},
	{Name: scatter, NCCL: "scatter_perf", divides: true, Bus: others, Places: either, least: 1, trips: 1,
		dst: part, src: all, gives: anyRank, gets: anyRank, result: partOfRoots},
	{Name: sendRecv, NCCL: "sendrecv_perf", Bus: whole, Places: outOfPlace, least: 1, trips: 1,
		dst: all, src: all, gives: anyRank, gets: anyRank, result: previous},
	{Name: pingPong, Bus: whole, Places: outOfPlace, least: 2, trips: 2,
		dst: all, src: all, gives: anyRank, gets: firstTwo, result: roots, torch: nowhere},
}

// OperationNames returns the values of --ops.
func OperationNames() []string {
	var n []string
	for _, o := range Operations {
		n = append(n, o.Name)
	}
	return n
}

// OperationOf returns the operation of a name.
func OperationOf(name string) (Operation, error) {
	if i := slices.Index(OperationNames(), name); i >= 0 {
		return Operations[i], nil
	}
	return Operation{}, fmt.Errorf("unknown operation %q: want %s", name, strings.Join(OperationNames(), ", "))
}
