package spmd

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
	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/nccl"
)

// What carries a collective: NCCL's plain algorithms, its symmetric kernels, or one kernel
// that reads and writes the memory of the other ranks' GPUs.
//
// NCCL takes its symmetric kernels wherever the buffers of a call lie in windows of
// the communicator, also at sizes at which its other algorithms are faster. So
// windows belong to a communicator of their own, beside the one that carries
// everything else. NCCL has no symmetric kernel for float64, integers and other
// operations than sums, and takes longer to be called than a kernel between peers, which
// small all-reduces have. On symmetric memory it is measured, size by size, which of them
// carries a call, when the first such memory is asked for. On other memory a kernel between
// peers carries the small all-reduces of the world where NVLink joins the GPUs: the
// communicators that Split makes would each need memory and a meeting for it.

// symComm is what there is for symmetric memory beside the first communicator and the peers.
type symComm struct {
	comm  *nccl.Comm // with windows; nil where NCCL has none
	paths paths
}

// way is what carries a call.
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
	call nccl.Kind
	typ  elem.Type // that is measured
}{
	{"allreduce", nccl.AllReduce, elem.Float32},
	{"allreduce_other", nccl.AllReduce, elem.Float64}, // what NCCL has no symmetric kernels for
	{"allgather", nccl.AllGather, elem.Float32},
	{"reducescatter", nccl.ReduceScatter, elem.Float32},
}

// paths says for each of pathRows, and a number of bytes of the larger buffer near each
// power of two, what carries the call.
type paths [len(pathRows)][mostSize + 1]way

// These are the sizes that are measured: 8 bytes to 256 MiB. What is larger goes the
// way of the largest.
const (
	leastSize, mostSize = 3, 28
	peerSize            = 17 // the largest that is one kernel of the peers
	peerRoom            = 2 << peerSize
)

const _ = uint(cudampi.PeersAtOnce - 1<<peerSize) // does not compile where the peers take less at once

// sizeBit is the number of the measured size that is nearest to n bytes.
func sizeBit(n int) int {
	i := bits.Len(uint(n)) - 1
	if i > 0 && n>>(i-1)&1 != 0 { // beyond one and a half times 1<<i
		i++
	}
	return min(max(i, leastSize), mostSize)
}

// of is the way of a call; others says that there are no symmetric kernels for it.
func (p *paths) of(c *call, others bool) way {
	n, row := c.n*c.typ.Size(), 0
	switch c.kind {
	case cmdAllReduce:
		if others {
			row = 1
		}
		if n > 1<<peerSize && p[row][sizeBit(n)] == peerWay {
			return plainWay
		}
		return p[row][sizeBit(n)]
	case cmdAllGather:
		row = 2
	case cmdReduceScatter:
		row = 3
	default:
		return plainWay
	}
	if others {
		return plainWay
	}
	return p[row][sizeBit(n*c.comm.size)]
}

// hasSymmetricKernels says whether NCCL has them for a type and an operation.
// Source: NCCL 2.28, src/sym_kernels.cc, ncclSymkImplemented.
func (c *call) hasSymmetricKernels() bool {
	return c.kind == cmdAllGather || c.op == Sum && (c.typ == elem.Float32 || c.typ.Half())
}

// describe says which sizes go a way: "8B to 64KiB, 2MiB to 16MiB".
func (p *paths) describe(row int, by way) string {
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

// carrier is what carries a call, in a graph and without: the ways add up in another
// order, and a graph is to have the bits of what was captured. Every rank finds the
// same: symmetric memory is the same on all of them.
func (st *commState) carrier(c *call) way {
	if t := st.sym; t != nil {
		switch c.memory() &^ sameMemory {
		case fromSymmetric | intoSymmetric:
			return t.paths.of(c, !c.hasSymmetricKernels())
		case fromSymmetric | intoPinned:
			return t.paths.of(c, true)
		}
	}
	if st.atOnce > 0 && c.kind == cmdAllReduce && c.n*c.typ.Size() <= st.atOnce {
		return peerWay
	}
	return plainWay
}

// openPeers has kernels between peers carry small all-reduces of any memory from now on:
// what each rank then sends in all is no more than on 4 H200s, where they were faster than
// NCCL up to peerSize. Collective over st, in a turn.
func (st *commState) openPeers() error {
	w := st.w
	defer w.startup.begin("peers")()
	var err error
	if st.peers, err = st.mpi.OpenPeers(w.gpu.dev, peerRoom); err != nil { // on all ranks alike
		w.Log.Info().Err(err).Msg("NCCL carries small all-reduces, not kernels between peers")
		return nil
	}
	st.atOnce = min(1<<peerSize, 3<<peerSize/(st.size-1))
	return nil
}

// closePeers gives the peers back. No graph may hold calls of them any more. Collective over st, in a turn.
func (st *commState) closePeers() error {
	if st.peers == nil {
		return nil
	}
	st.w.gpu.forget(st.peers)
	err := st.peers.Close()
	st.peers, st.atOnce = nil, 0
	return err
}

// choosePaths sets what carries what: NCCL's symmetric kernels all that they can with
// --symmetric always, else as an earlier run on the same kind of machine found, or as
// is measured now.
//
// Collective over st, in a turn; no collective is in flight. The caller holds g.issue.
func (st *commState) choosePaths() error {
	p := &st.sym.paths
	if st.w.cfg.Symmetric == "always" {
		for row := range p {
			for i := range p[row] {
				if st.sym.comm != nil && pathRows[row].typ == elem.Float32 {
					p[row][i] = symmetricWay
				}
			}
		}
		return nil
	}
	key, err := st.pathsKey()
	if err != nil {
		return err
	}
	// What the ranks have of earlier runs may differ: that of the first counts.
	var stored struct {
		paths
		found bool
	}
	if st.rank == 0 {
		stored.paths, stored.found = loadPaths(key)
		for row, r := range pathRows { // a file may be damaged
			for size, by := range stored.paths[row] {
				stored.found = stored.found && st.has(by, r.call, size)
			}
		}
	}
	if err := st.mpi.Broadcast(unsafe.Pointer(&stored), int(unsafe.Sizeof(stored)), elem.Uint8, 0); err != nil {
		return err
	}
	*p = stored.paths
	how := "as measured by an earlier run"
	if !stored.found {
		how = "measured now"
		if err := st.measurePaths(); err != nil {
			return fmt.Errorf("measuring the paths of symmetric memory: %w", err)
		}
		if st.rank == 0 {
			if err := storePaths(key, *p); err != nil {
				st.w.Log.Debug().Err(err).Msg("the paths of symmetric memory are not kept: each run measures them")
			}
		}
	}
	if st.w.Comm.st == st {
		line := st.w.Log.Info().Str("how", how)
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

// pathsKey says what the paths depend on. Collective over st.
func (st *commState) pathsKey() (string, error) {
	x := [2]int64{int64(st.w.node), -int64(st.w.node)}
	if err := st.mpi.AllReduce(unsafe.Pointer(&x), unsafe.Pointer(&x), 2, elem.Int64, Max); err != nil {
		return "", err
	}
	where := "one node"
	if x[0] != -x[1] {
		where = "several nodes"
	}
	var set []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "NCCL_") && !strings.HasPrefix(e, "NCCL_DEBUG") {
			set = append(set, e)
		}
	}
	slices.Sort(set)
	has := "windows"
	switch {
	case st.sym.comm == nil:
		has = "peers"
	case st.peers != nil:
		has = "windows and peers to " + byteSize(peerSize) // what was measured with another limit says nothing
	}
	return fmt.Sprintf("%q, driver %d, NCCL %s, %d ranks on %s, %s, %q",
		st.w.gpu.dev.Name(), cuda.DriverVersion(), nccl.VersionString(), st.size, where, has, set), nil
}

// pathsFile is the file of all that earlier runs measured; "" where there is no folder for it.
func pathsFile() string {
	if dir := nvrtc.DefaultCache().Dir; dir != "" {
		return filepath.Join(dir, "symmetric-paths")
	}
	return ""
}

// A line is a digit for each way, a word for each row, and the key behind a tab.
func loadPaths(key string) (paths, bool) {
	const most = 1 << 20 // of a file that is what it seems
	file := pathsFile()
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() > most {
		return paths{}, false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return paths{}, false
	}
	for line := range strings.Lines(string(b)) {
		head, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if rest == key {
			if p, ok := parsePaths(head); ok {
				return p, true
			}
		}
	}
	return paths{}, false
}

func parsePaths(text string) (p paths, ok bool) {
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

func (p *paths) String() string {
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
func storePaths(key string, p paths) error {
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
