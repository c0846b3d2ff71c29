// Package coll is the table of the calls of a communicator. It has the name of each, who gives data
// and who gets it, and which operands may lie in place. It makes calls of simpler ones. It knows no
// transport and no library.
package coll

import "sync/atomic"

// Kind says which call of a communicator a Call is.
type Kind uint8

// The kinds, in MPI's words.
const (
	None Kind = iota

	AllReduce
	Reduce
	Broadcast
	AllGather
	ReduceScatter
	AllToAll
	Gather
	Scatter
	AllGatherV
	ReduceScatterV
	GatherV
	ScatterV
	AllToAllV
	Scan
	ExScan
	Send
	Recv
	SendRecv
	Barrier

	Group // several of the above, which start together
	Graph // the replay of a graph that holds calls of the communicator

	// The framework's own work over all ranks, on behalf of a call of the program.
	Split
	CloseComm
	AllocSymmetric
	Choose
	BroadcastValue
	AllGatherValue
	Start
	End

	// Steps of a call (see Steps) that concern this rank alone.
	Copy // N elements from Src to Dst
	Fill // N elements at Dst with the value that leaves others as they are under Op

	Kinds = iota // number of kinds, without those of Register
	Most  = 256  // of kinds
)

// Extent is how many elements of a buffer a call reads or writes.
type Extent uint8

// The extents. A V form has Counts[r] elements as the part of rank r, the others N of each rank.
const (
	Nothing  Extent = iota
	Part            // this rank's part
	Whole           // the parts of all ranks
	Received        // what this rank receives: RecvN, or the sum of RecvCounts
)

// Side is the use of one of a call's two buffers.
type Side struct {
	Extent Extent
	AtRoot bool // only the root has the buffer
	Later  bool // rank 0 has none
}

// Lengths says what a call's lengths are.
type Lengths uint8

// The lengths.
const (
	Equal  Lengths = iota // N, the same on all ranks
	Shared                // Counts, the same on all ranks
	Own                   // each rank has its own
)

// Place says where dst and src of a call may overlap.
type Place uint8

// The places.
const (
	Apart     Place = iota // nowhere
	Same                   // dst is src
	PartOfDst              // src is this rank's part of dst
	PartOfSrc              // dst is this rank's part of src
)

// Traits are the properties of all calls of a kind.
type Traits struct {
	Name     string
	Dst      Side
	Src      Side
	Lengths  Lengths
	InPlace  Place
	Reduces  bool // it has an operation
	Rooted   bool // one rank gives or gets what the others do not
	FromRoot bool // of a rooted call: the root gives, and the others get; else the others give
	Message  bool // it concerns two or three ranks, not all
	Local    bool // it is a step that concerns this rank alone
	Own      bool // it is the framework's own: it has a name, and no data
}

// Moves reports whether calls of the kind move data of the program.
func (t *Traits) Moves() bool { return t.Dst.Extent|t.Src.Extent != Nothing }

var (
	part       = Side{Extent: Part}
	whole      = Side{Extent: Whole}
	partAtRoot = Side{Extent: Part, AtRoot: true}
	rootsWhole = Side{Extent: Whole, AtRoot: true}
	laterPart  = Side{Extent: Part, Later: true}
)

var table = [Most]Traits{
	AllReduce:      {Name: "AllReduce", Dst: part, Src: part, InPlace: Same, Reduces: true},
	Reduce:         {Name: "Reduce", Dst: partAtRoot, Src: part, InPlace: Same, Reduces: true, Rooted: true},
	Broadcast:      {Name: "Broadcast", Dst: part, Rooted: true, FromRoot: true},
	AllGather:      {Name: "AllGather", Dst: whole, Src: part, InPlace: PartOfDst},
	ReduceScatter:  {Name: "ReduceScatter", Dst: part, Src: whole, InPlace: PartOfSrc, Reduces: true},
	AllToAll:       {Name: "AllToAll", Dst: whole, Src: whole, InPlace: Same},
	Gather:         {Name: "Gather", Dst: rootsWhole, Src: part, InPlace: PartOfDst, Rooted: true},
	Scatter:        {Name: "Scatter", Dst: part, Src: rootsWhole, InPlace: PartOfSrc, Rooted: true, FromRoot: true},
	AllGatherV:     {Name: "AllGatherV", Dst: whole, Src: part, Lengths: Shared, InPlace: PartOfDst},
	ReduceScatterV: {Name: "ReduceScatterV", Dst: part, Src: whole, Lengths: Shared, InPlace: PartOfSrc, Reduces: true},
	GatherV:        {Name: "GatherV", Dst: rootsWhole, Src: part, Lengths: Shared, InPlace: PartOfDst, Rooted: true},
	ScatterV: {Name: "ScatterV", Dst: part, Src: rootsWhole, Lengths: Shared, InPlace: PartOfSrc,
		Rooted: true, FromRoot: true},
	AllToAllV: {Name: "AllToAllV", Dst: Side{Extent: Received}, Src: whole, Lengths: Own},
	Scan:      {Name: "Scan", Dst: part, Src: part, InPlace: Same, Reduces: true},
	ExScan:    {Name: "ExScan", Dst: laterPart, Src: part, InPlace: Same, Reduces: true},
	Send:      {Name: "Send", Src: part, Message: true},
	Recv:      {Name: "Recv", Dst: part, Message: true},
	SendRecv:  {Name: "SendRecv", Dst: Side{Extent: Received}, Src: part, Message: true},
	Barrier:   {Name: "Barrier"},
	Group:     {Name: "Group"},
	Graph:     {Name: "graph"},

	Split:          {Name: "Split", Own: true},
	CloseComm:      {Name: "Close of a communicator", Own: true},
	AllocSymmetric: {Name: "AllocSymmetric", Own: true},
	Choose:         {Name: "Choose", Own: true},
	BroadcastValue: {Name: "hostdata.Broadcast", Own: true, Rooted: true},
	AllGatherValue: {Name: "hostdata.AllGather", Own: true},
	Start:          {Name: "the start", Own: true},
	End:            {Name: "the end", Own: true},

	Copy: {Name: "Copy", Dst: part, Src: part, Local: true},
	Fill: {Name: "Fill", Dst: part, Local: true},
}

// registered counts the kinds of Register.
var registered atomic.Int32

// Register returns the kind of another call of the framework's own. All ranks register the same
// names in the same order, before the first call.
func Register(name string) Kind {
	k := Kinds + int(registered.Add(1)) - 1
	if k >= Most {
		panic("coll: more kinds than there are numbers for")
	}
	table[k] = Traits{Name: name, Own: true}
	return Kind(k)
}

// Traits returns the properties of the kind; none for a kind that does not exist.
func (k Kind) Traits() *Traits { return &table[k] }

func (k Kind) String() string { return table[k].Name }

type Set uint64

// SetOf returns the set of some kinds.
func SetOf(kinds ...Kind) Set {
	var s Set
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

// Has reports whether the kind is in the set.
func (s Set) Has(k Kind) bool { return s>>k&1 != 0 }
