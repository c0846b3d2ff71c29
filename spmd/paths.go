package spmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/nccl"
)

// What carries a collective on symmetric memory.
//
// NCCL takes its symmetric kernels wherever the buffers of a call lie in windows of
// the communicator, also at sizes at which its other algorithms are faster. So
// windows belong to a communicator of their own, beside the one that carries
// everything else. A small all-reduce may also be one kernel that reads and writes the
// memory of the other ranks' GPUs: NCCL has no symmetric kernel for float64, integers
// and other operations than sums, and takes longer to be called than a kernel. Which
// of them carries a call is measured, size by size, when the first symmetric memory is
// asked for.

// symComm is what there is for symmetric memory beside the first communicator.
type symComm struct {
	comm  *nccl.Comm     // with windows; nil where NCCL has none
	peers *cudampi.Peers // nil where the ranks' GPUs do not reach each other
	paths paths
}

// known is memory that the communicators have registered.
type known struct {
	ptr    unsafe.Pointer
	reg    *nccl.Registration
	window *nccl.Window
}

// way is what carries a call.
type way byte

const (
	plainWay way = iota
	symmetricWay
	peerWay
	ways
)

// pathRows are the calls that have a choice. An eager one costs the host more by one way than by another, one in a
// graph does not.
var pathRows = [...]struct {
	name  string
	call  nccl.Kind
	typ   elem.Type // that is measured
	eager bool
}{
	{"allreduce", nccl.AllReduce, elem.Float32, false},
	{"allreduce_eager", nccl.AllReduce, elem.Float32, true},
	{"allreduce_other", nccl.AllReduce, elem.Float64, false}, // what NCCL has no symmetric kernels for
	{"allreduce_other_eager", nccl.AllReduce, elem.Float64, true},
	{"allgather", nccl.AllGather, elem.Float32, false},
	{"reducescatter", nccl.ReduceScatter, elem.Float32, false},
}

// paths says for each of pathRows, and a number of bytes of the larger buffer near each
// power of two, what carries the call.
type paths [len(pathRows)][mostSize + 1]way

// These are the sizes that are measured: 8 bytes to 256 MiB. What is larger goes the
// way of the largest.
const (
	leastSize, mostSize = 3, 28
	peerSize            = 14 // the largest that is one kernel of the peers
)

// sizeBit is the number of the measured size that is nearest to n bytes.
func sizeBit(n int) int {
	i := bits.Len(uint(n)) - 1
	if i > 0 && n>>(i-1)&1 != 0 { // beyond one and a half times 1<<i
		i++
	}
	return min(max(i, leastSize), mostSize)
}

// of is the way of a call; others says that there are no symmetric kernels for it.
func (p *paths) of(c *call, others, eager bool) way {
	n, row := c.n*c.typ.Size(), 0
	switch c.kind {
	case cmdAllReduce:
		if others {
			row = 2
		}
		if eager {
			row++
		}
		if n > 1<<peerSize && p[row][sizeBit(n)] == peerWay {
			return plainWay
		}
		return p[row][sizeBit(n)]
	case cmdAllGather:
		row = 4
	case cmdReduceScatter:
		row = 5
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

// carrier is what carries a call. Every rank finds the same: symmetric memory is the
// same on all of them.
func (st *commState) carrier(c *call, eager bool) way {
	t := st.sym
	if t == nil || c.dblk == nil || c.sblk == nil || c.sblk.pool != &st.w.symmetric.pool || c.dblk.pool != c.sblk.pool && c.dblk.pool != st.w.pinned {
		return plainWay
	}
	return t.paths.of(c, !c.hasSymmetricKernels() || c.dblk.pool != c.sblk.pool, eager)
}

// register has both communicators, the second of which the first memory makes, know the
// bytes at ptr. It closes nothing where it fails: unregister does.
//
// Collective over st, in a turn; no collective is in flight. The caller holds g.issue.
func (st *commState) register(ptr unsafe.Pointer, n int) error {
	reg, err := st.nccl.Register(ptr, n)
	if err != nil {
		return err
	}
	st.known = append(st.known, known{ptr: ptr, reg: reg})
	if st.noSym || st.w.cfg.Symmetric == "never" {
		return nil
	}
	first := st.sym == nil
	if first {
		if err := st.openSym(); err != nil {
			return err
		}
	}
	if st.sym.comm != nil {
		window, err := st.sym.comm.RegisterWindow(ptr, n)
		if err != nil {
			return err
		}
		st.known[len(st.known)-1].window = window
		if !window.Registered() {
			if err := st.closeWindows(); err != nil {
				return err
			}
		}
	}
	switch {
	case st.sym.comm == nil && st.sym.peers == nil:
		st.sym, st.noSym = nil, true
		if st.w.Comm.st == st {
			st.w.Log.Info().Str("nccl", nccl.VersionString()).Msg("AllocSymmetric: small collectives have no faster path: there are no windows of NCCL (from 2.27), and no GPUs that reach each other")
		}
	case first:
		return st.choosePaths()
	}
	return nil
}

// openSym makes what carries calls on symmetric memory. Collective over st, in a turn.
func (st *commState) openSym() error {
	st.sym = &symComm{}
	w := st.w
	// Nothing is wrong with GPUs that do not reach each other: all ranks learn it alike.
	peers, err := st.mpi.OpenPeers(w.gpu.dev, 2<<peerSize)
	if err != nil {
		w.Log.Debug().Err(err).Msg("small all-reduces on symmetric memory take no kernel of their own")
	} else {
		st.sym.peers = peers
	}
	if nccl.Version() < 22700 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := st.nccl.Split(ctx, 0, st.rank, nccl.Config{})
	if err != nil {
		return fmt.Errorf("a second communicator, for symmetric memory: %w", err)
	}
	st.sym.comm = c
	w.gpu.addNCCL(c)
	return nil
}

// unregister takes memory out of both communicators.
func (st *commState) unregister(ptr unsafe.Pointer) error {
	var err error
	for _, k := range st.known {
		if k.ptr == ptr {
			err = errors.Join(err, k.close())
		}
	}
	st.known = slices.DeleteFunc(st.known, func(k known) bool { return k.ptr == ptr })
	return err
}

func (k *known) close() error {
	var err error
	if k.window != nil {
		err = k.window.Close()
	}
	return errors.Join(err, k.reg.Close())
}

// closeSym ends what there is for symmetric memory but the registrations. No graph
// may hold any of it any more. Collective over st, in a turn.
func (st *commState) closeSym() error {
	if st.sym == nil {
		return nil
	}
	st.w.gpu.forget(st.sym.comm)
	err := st.closeWindows()
	if p := st.sym.peers; p != nil {
		st.w.gpu.forget(p)
		err = errors.Join(err, p.Close())
	}
	st.sym = nil
	return err
}

// closeWindows ends the communicator with windows.
func (st *commState) closeWindows() error {
	var err error
	for i := range st.known {
		if w := st.known[i].window; w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if c := st.sym.comm; c != nil {
		st.sym.comm = nil
		err = errors.Join(err, st.w.gpu.endNCCL(c))
	}
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
	case st.sym.peers != nil:
		has = "windows and peers"
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

// measurePaths times each way with each call and size. A size goes the way whose slowest
// rank is the fastest.
func (st *commState) measurePaths() error {
	g, most := st.w.gpu, mostSize
	free, _, err := g.dev.MemInfo()
	if err != nil {
		return err
	}
	for most > peerSize && 2<<most > free/8 {
		most--
	}
	low := int64(most)
	if err := st.mpi.AllReduce(unsafe.Pointer(&low), unsafe.Pointer(&low), 1, elem.Int64, Min); err != nil {
		return err
	}
	most = int(low)
	n := 1 << most
	mem, err := nccl.MemAlloc(g.dev, 2*n)
	if err := st.agree(err); err != nil {
		return err
	}
	var us [len(pathRows)][mostSize + 1][ways]float64
	err = st.withKnown(mem, 2*n, func() error {
		t := timer{g: g}
		defer t.close()
		if err := t.open(); err != nil {
			return err
		}
		for row, r := range pathRows {
			for size := leastSize; size <= most; size++ {
				c := nccl.Call{Kind: r.call, Type: r.typ, Op: Sum, Dst: mem, Src: unsafe.Add(mem, n), N: 1 << size / r.typ.Size()}
				if c.Kind != nccl.AllReduce {
					c.N = max(1, c.N/st.size)
				}
				for by := range ways {
					at := &us[row][size][by]
					*at = math.MaxFloat64
					if r.eager && size > peerSize {
						*at = us[row-1][size][by] // the host's time plays no part
					} else if call := st.by(by, t.h, c, size, r.typ); call != nil {
						var err error
						if *at, err = t.time(call, r.eager, max(2, 16>>max(0, size-14))); err != nil {
							return err
						}
					}
				}
			}
		}
		return nil
	})
	err = errors.Join(err, nccl.MemFree(g.dev, mem))
	if err != nil {
		return err
	}
	if err := st.mpi.AllReduce(unsafe.Pointer(&us), unsafe.Pointer(&us), int(unsafe.Sizeof(us)/8), elem.Float64, Max); err != nil {
		return err
	}
	for row := range us {
		for size := leastSize; size <= mostSize; size++ {
			best := plainWay
			for by, t := range us[row][min(size, most)] {
				if t < us[row][min(size, most)][best] {
					best = way(by)
				}
			}
			st.sym.paths[row][size] = best
		}
	}
	return nil
}

// by returns what makes a call in a way; nil where that is not to be had.
func (st *commState) by(by way, h *cuda.Stream, c nccl.Call, size int, t elem.Type) func() error {
	nc := st.nccl
	switch {
	case by == symmetricWay && (st.sym.comm == nil || t != elem.Float32), by == peerWay && (st.sym.peers == nil || size > peerSize || c.Kind != nccl.AllReduce):
		return nil
	case by == peerWay:
		return func() error { return st.sym.peers.AllReduce(h, c.Dst, c.Src, c.N, c.Type, c.Op) }
	case by == symmetricWay:
		nc = st.sym.comm
	}
	calls := []nccl.Call{c}
	return func() error { return nc.Group(h, calls) }
}

// withKnown runs fn while the communicators know the memory.
func (st *commState) withKnown(mem unsafe.Pointer, n int, fn func() error) error {
	reg, err := st.nccl.Register(mem, n)
	if err != nil {
		return err
	}
	if c := st.sym.comm; c != nil {
		var window *nccl.Window
		if window, err = c.RegisterWindow(mem, n); err == nil {
			err = errors.Join(fn(), window.Close())
		}
	} else {
		err = fn()
	}
	return errors.Join(err, reg.Close())
}

// agree fails on all ranks of st where one does. Collective.
func (st *commState) agree(failure error) error {
	bad := int64(st.size)
	if failure != nil {
		bad = int64(st.rank)
	}
	if err := st.mpi.AllReduce(unsafe.Pointer(&bad), unsafe.Pointer(&bad), 1, elem.Int64, Min); err != nil {
		return err
	}
	if failure == nil && bad < int64(st.size) {
		return fmt.Errorf("rank %d of %d failed", bad, st.size)
	}
	return failure
}

// timer times calls on a stream of its own.
type timer struct {
	g *gpu
	h *cuda.Stream
	e *cuda.Event
}

func (t *timer) open() (err error) {
	if t.h, err = t.g.dev.NewStream(0); err == nil {
		t.e, err = t.g.dev.NewEvent(false)
	}
	return err
}

func (t *timer) close() {
	if t.e != nil {
		_ = t.e.Close() // measuring has ended, well or not
	}
	if t.h != nil {
		_ = t.h.Close()
	}
}

// time returns the least time of a few rounds of so many calls, eager or in a graph, in us.
func (t *timer) time(call func() error, eager bool, calls int) (us float64, err error) {
	const rounds = 4 // beside the first
	all := func() error {
		for range calls {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	}
	if !eager {
		if err := t.h.BeginCapture(cuda.Relaxed); err != nil {
			return 0, err
		}
		if err := all(); err != nil {
			return 0, errors.Join(err, t.h.Abandon())
		}
		graph, err := t.h.EndCapture()
		if err != nil {
			return 0, err
		}
		x, err := graph.Instantiate()
		if err = errors.Join(err, graph.Close()); err != nil {
			return 0, err
		}
		defer x.Close()
		all = func() error { return x.Launch(t.h) }
	}
	for i := range 1 + rounds {
		start := time.Now()
		if err := errors.Join(all(), t.e.Record(t.h)); err != nil {
			return 0, err
		}
		for done := false; !done; {
			if done, err = t.e.Spin(spinSlice); err != nil {
				return 0, err
			}
			if time.Since(start) > patience {
				return 0, errImpatient
			}
		}
		if took := float64(time.Since(start).Nanoseconds()) / 1e3; i == 1 || i > 1 && took < us {
			us = took
		}
	}
	return us, nil
}
