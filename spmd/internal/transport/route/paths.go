package route

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

// A collective has three ways: NCCL's plain algorithms, NCCL's symmetric kernels, or one kernel
// that reads and writes the memory of the other ranks' GPUs.
//
// NCCL's symmetric kernels belong to a transport of their own (transport.Registrar, Symmetric),
// beside the one that carries everything else. NCCL has none for float64, integers and other
// operations than sums. It takes longer to be called than a kernel between peers. When a program
// first asks for symmetric memory, the ways of the calls of pathRows are measured on it, size by
// size. On other memory a kernel between peers carries small collectives, and small messages, if
// NVLink joins the GPUs.

// symComm has the second transport for symmetric memory, and its measured paths.
type symComm struct {
	windows transport.Registrar // has kernels for it; nil if the library has none
	paths   Paths
}

// way names one of the ways of a call.
type way byte

const (
	plainWay way = iota
	symmetricWay
	peerWay
	ways
)

// pathRows are the calls that have a choice.
var pathRows = [...]struct {
	name string
	call coll.Kind
	typ  elem.Type // that is measured
}{
	{"allreduce", coll.AllReduce, elem.Float32},
	{"allreduce_other", coll.AllReduce, elem.Float64}, // what NCCL has no symmetric kernels for
	{"allgather", coll.AllGather, elem.Float32},
	{"reducescatter", coll.ReduceScatter, elem.Float32},
}

// Paths has the way of each call of pathRows, for sizes of the larger buffer near each power of
// two.
type Paths [len(pathRows)][mostSize + 1]way

// The measured sizes go from 8 bytes to 256 MiB. Larger calls go the way of the largest.
const (
	leastSize, mostSize = 3, 28
	hostSize            = 19   // from here on a call takes the GPUs longer than the host
	peerRoom            = 4096 // scratch memory of the peers, which small collectives do without
)

// sizeBit returns the number of the measured size that is nearest to n bytes.
func sizeBit(n int) int {
	i := bits.Len(uint(n)) - 1
	if i > 0 && n>>(i-1)&1 != 0 { // beyond one and a half times 1<<i
		i++
	}
	return min(max(i, leastSize), mostSize)
}

// noSymmetric is the others of a call that symmetric kernels cannot carry.
const noSymmetric = true

// of returns the way of a call; others says that there are no symmetric kernels for it. It is not
// ok for what has no row.
func (p *Paths) of(c *coll.Call, size int, others bool) (by way, ok bool) {
	n := c.N * c.Type.Size()
	switch {
	case c.Kind == coll.AllReduce && others:
		return p[1][sizeBit(n)], true
	case c.Kind == coll.AllReduce:
		return p[0][sizeBit(n)], true
	case c.Kind == coll.AllGather && !others:
		return p[2][sizeBit(n*size)], true
	case c.Kind == coll.ReduceScatter && !others:
		return p[3][sizeBit(n*size)], true
	}
	return plainWay, false
}

// describe says which sizes go a way: "8B to 64KiB, 2MiB to 16MiB".
func (p *Paths) describe(row int, by way) string {
	var list []string
	for i := leastSize; i <= mostSize; i++ {
		from := i
		for i <= mostSize && p[row][i] == by {
			i++
		}
		switch {
		case from == i:
		case i > mostSize:
			list = append(list, byteSize(from)+" and more")
		case from == i-1:
			list = append(list, byteSize(from))
		default:
			list = append(list, byteSize(from)+" to "+byteSize(i-1))
		}
	}
	return strings.Join(list, ", ")
}

// byteSize is 1<<i bytes.
func byteSize(i int) string {
	return fmt.Sprintf("%d%s", 1<<(i%10), []string{"B", "KiB", "MiB"}[i/10])
}

// choosePaths sets the way of each call. With --symmetric always NCCL's symmetric kernels carry all
// that they can. Else it takes what an earlier run on the same kind of machine has found, or
// measures now.
//
// Collective over the communicator, in a turn; no collective is in
// flight. The caller holds g.issue.
func (r *Router) choosePaths() error {
	p := &r.sym.paths
	if r.env.Symmetric == "always" {
		for row := range p {
			for i := range p[row] {
				if r.sym.windows != nil && pathRows[row].typ == elem.Float32 {
					p[row][i] = symmetricWay
				}
			}
		}
		return nil
	}
	key := r.pathsKey()
	// The ranks may have different results of earlier runs: the first rank's count.
	var stored struct {
		Paths
		found bool
	}
	if r.rank == 0 {
		stored.Paths, stored.found = loadPaths(key)
		for row := range stored.Paths { // a file may be damaged
			for size, by := range stored.Paths[row] {
				stored.found = stored.found && r.has(by, row, size)
			}
		}
	}
	if err := r.host.Broadcast(unsafe.Pointer(&stored), int(unsafe.Sizeof(stored)), elem.Uint8, 0); err != nil {
		return err
	}
	*p = stored.Paths
	how := "as measured by an earlier run"
	if !stored.found {
		how = "measured now"
		if err := r.measurePaths(); err != nil {
			return fmt.Errorf("measuring the paths of symmetric memory: %w", err)
		}
		if r.rank == 0 {
			if err := storePaths(key, *p); err != nil {
				r.env.Log.Debug().Err(err).Msg("the paths of symmetric memory are not kept: each run measures them")
			}
		}
	}
	if r.env.First == r {
		line := r.env.Log.Info().Str("how", how)
		for row := range pathRows {
			for by, name := range [...]string{symmetricWay: "_symmetric", peerWay: "_peers"} {
				if sizes := p.describe(row, way(by)); name != "" && sizes != "" {
					line = line.Str(pathRows[row].name+name, sizes)
				}
			}
		}
		line.Msg("AllocSymmetric: what NCCL's symmetric kernels carry, and kernels between peers")
	}
	return nil
}

// onSeveralNodes reports whether the ranks of st are not all on one. Collective over r.
func (r *Router) onSeveralNodes() (bool, error) {
	nodes, err := control.Range(r.host, int64(r.env.Node))
	return !nodes.One(), err
}

// pathsKey says what the paths depend on, of ranks on one node.
func (r *Router) pathsKey() string {
	var set []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "NCCL_") && !strings.HasPrefix(e, "NCCL_DEBUG") {
			set = append(set, e)
		}
	}
	slices.Sort(set)
	has := "windows apart" // from what is ahead: what was measured without that says nothing
	switch {
	case r.sym.windows == nil:
		has = "peers"
	case r.peers != nil:
		// what was measured with another limit says nothing
		has = fmt.Sprintf("windows apart and peers to %d bytes", r.peers.Most())
	}
	return fmt.Sprintf("%q, driver %d, NCCL %s, %d ranks on one node, %s, %q",
		r.env.GPU.Dev.Name(), cuda.DriverVersion(), r.registrar.Version(), r.size, has, set)
}

// pathsFile returns the file of all that earlier runs measured; "" if there is no folder for it.
func pathsFile() string {
	if dir := nvrtc.DefaultCache().Dir; dir != "" {
		return filepath.Join(dir, "symmetric-paths")
	}
	return ""
}

// A line is a digit for each way, a word for each row, and the key behind a tab.
func loadPaths(key string) (Paths, bool) {
	const most = 1 << 20 // of a file that is what it seems
	file := pathsFile()
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() > most {
		return Paths{}, false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return Paths{}, false
	}
	for line := range strings.Lines(string(b)) {
		head, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if rest == key {
			if p, ok := parsePaths(head); ok {
				return p, true
			}
		}
	}
	return Paths{}, false
}

func parsePaths(text string) (p Paths, ok bool) {
	words := strings.Fields(text)
	if len(words) != len(p) {
		return p, false
	}
	for row, word := range words {
		if len(word) != mostSize+1-leastSize {
			return p, false
		}
		for i := range word {
			by := way(word[i] - '0')
			if by >= ways {
				return p, false
			}
			p[row][leastSize+i] = by
		}
	}
	return p, true
}

func (p *Paths) String() string {
	var words []string
	for row := range p {
		word := make([]byte, mostSize+1-leastSize)
		for i := range word {
			word[i] = '0' + byte(p[row][leastSize+i])
		}
		words = append(words, string(word))
	}
	return strings.Join(words, " ")
}

// storePaths appends a line: two jobs that do so at once leave two.
func storePaths(key string, p Paths) error {
	file := pathsFile()
	if file == "" {
		return errors.New("there is no cache folder (set LOCKSTEP_CACHE)")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%v\t%s\n", &p, key)
	return errors.Join(err, f.Close())
}
