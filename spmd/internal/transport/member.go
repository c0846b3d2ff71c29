package transport

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// group is shared by the ranks of a communicator.
type group struct {
	team    *Team
	members []int // their numbers in the team
	desks   []desk
	boxes   []box // messages from rank f to rank t at f*size+t
	mu      sync.Mutex
	parts   map[part]*making // groups that some ranks have asked for, and others will
}

// desk is where a rank puts what it brings to the meetings of a group, one after the other.
type desk [posts]post

// posts is the number of posts of a desk. A rank may be one meeting ahead of ranks that still read,
// and prepares a post for the next meeting during this one.
const posts = 4

// inline is the most bytes of operands that lie in a post. The first of them lie in
// its first line of the cache.
const inline = 1088 - 32

// post has a rank's part of a meeting.
type post struct {
	meeting atomic.Uint64 // its number; the rest belongs to it
	call    uint64        // kind, type, operation and root
	n       int           // elements, or a sum over the counts
	src     unsafe.Pointer
	data    [inline]byte
}

// part names a group that is made of another: its number, and the color of its ranks.
type part struct{ number, color int }

type making struct {
	g    *group
	left int // members that have not got it
}

func newGroup(t *Team, members []int) *group {
	n := len(members)
	return &group{team: t, members: members, desks: make([]desk, n), boxes: make([]box, n*n), parts: map[part]*making{}}
}

// Member is a communicator of ranks of a Team, on one of them. It is a Host, used
// by one goroutine at a time.
type Member struct {
	_          line // a rank writes to its Comm in every call: no other's shares the line
	g          *group
	rank, size int
	team       *Team
	meetings   uint64 // that this rank has come to
	patience   patience
	splits     int
	result     []byte // of a reduction, which others may read
	staged     []byte // operands of a call in place
	sources    []unsafe.Pointer
	messages   []coll.Call
	_          line
}

type line [64]byte

func newComm(g *group, rank int) *Member {
	n := len(g.members)
	sources := make([]unsafe.Pointer, n, max(n, len(line{})/8)) // as much as a line
	return &Member{g: g, team: g.team, rank: rank, size: n, sources: sources, patience: patience{spins: g.team.spins}}
}

// Rank returns this rank's number.
func (r *Member) Rank() int { return r.rank }

// Size returns the number of ranks.
func (r *Member) Size() int { return r.size }

// Dup implements Host. It waits for nobody.
func (r *Member) Dup() (Host, error) {
	r.splits++
	return newComm(r.g.part(part{number: r.splits}, r.g.members), r.rank), nil
}

// SplitShared implements Host: all ranks are on this node.
func (r *Member) SplitShared() (Host, error) { return r.Dup() }

func (r *Member) Split(color, key int) (Host, error) {
	type asked struct{ color, key, rank int64 }
	all := make([]asked, r.size)
	mine := asked{int64(color), int64(key), int64(r.rank)}
	if err := r.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), 3, elem.Int64); err != nil {
		return nil, err
	}
	r.splits++
	if color < 0 {
		return nil, nil
	}
	all = slices.DeleteFunc(all, func(a asked) bool { return a.color != mine.color })
	slices.SortStableFunc(all, func(a, b asked) int { return cmp.Compare(a.key, b.key) })
	members := make([]int, len(all))
	for i, a := range all {
		members[i] = r.g.members[a.rank]
	}
	return newComm(r.g.part(part{r.splits, color}, members), slices.Index(all, mine)), nil
}

// part returns a group that each of its members asks for once.
func (g *group) part(p part, members []int) *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.parts[p]
	if m == nil {
		m = &making{newGroup(g.team, members), len(members)}
		g.parts[p] = m
	}
	if m.left--; m.left == 0 {
		delete(g.parts, p)
	}
	return m.g
}

// Abort implements Host: this process is all there is.
func (r *Member) Abort(int) {}

func (r *Member) Name() string { return "inproc" }

const kinds coll.Set = 1<<coll.AllReduce | 1<<coll.Reduce | 1<<coll.Broadcast | 1<<coll.AllGather | 1<<
	coll.ReduceScatter | 1<<coll.AllToAll |
	1<<coll.Gather | 1<<coll.Scatter | 1<<coll.AllGatherV | 1<<coll.ReduceScatterV | 1<<coll.GatherV | 1<<
	coll.ScatterV | 1<<coll.AllToAllV |
	1<<coll.Scan | 1<<coll.ExScan | 1<<coll.Send | 1<<coll.Recv | 1<<coll.SendRecv | 1<<coll.Barrier

var caps = Caps{Library: coll.Library{Kinds: kinds}, Host: true, Ordered: true}

func (r *Member) Caps() *Caps { return &caps }
