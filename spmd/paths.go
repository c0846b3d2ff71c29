package spmd

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/nccl"
)

// NCCL takes its symmetric kernels wherever the buffers of a call lie in windows of
// the communicator, also at sizes at which its other algorithms are faster. So
// windows belong to a communicator of their own, beside the one that carries
// everything else. Which of the two a call takes is measured, size by size, when the
// first symmetric memory is asked for.

// symComm is the second NCCL communicator of the same ranks, that with windows.
type symComm struct {
	comm  *nccl.Comm
	paths paths
}

// known is memory that both have registered.
type known struct {
	ptr    unsafe.Pointer
	reg    *nccl.Registration
	window *nccl.Window
}

// pathOps are the collectives for which NCCL has symmetric kernels.
// Source: NCCL 2.28, src/include/sym_kernels.h.
var pathOps = [...]struct {
	kind cmdKind
	call nccl.Kind
}{{cmdAllReduce, nccl.AllReduce}, {cmdAllGather, nccl.AllGather}, {cmdReduceScatter, nccl.ReduceScatter}}

// paths says for each of pathOps which sizes go to the second: bit i is for about 1<<i
// bytes of the larger buffer.
type paths [len(pathOps)]uint64

// These are the sizes that are measured: 8 bytes to 256 MiB. What is larger goes the
// way of the largest.
const leastSize, mostSize = 3, 28

// sizeBit is the number of the measured size that is nearest to n bytes.
func sizeBit(n int) int {
	i := bits.Len(uint(n)) - 1
	if i > 0 && n>>(i-1)&1 != 0 { // beyond one and a half times 1<<i
		i++
	}
	return min(max(i, leastSize), mostSize)
}

func (p *paths) symmetric(c *call) bool {
	n := c.n * c.typ.Size()
	if c.kind != cmdAllReduce {
		n *= c.comm.size
	}
	for i := range pathOps {
		if c.kind == pathOps[i].kind {
			return p[i]>>sizeBit(n)&1 != 0
		}
	}
	return false
}

// describe says which sizes of a collective go to the second: "8B to 64KiB, 2MiB to 16MiB".
func (p *paths) describe(op int) string {
	var list []string
	for i := leastSize; i <= mostSize; i++ {
		from := i
		for i <= mostSize && p[op]>>i&1 != 0 {
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
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// byteSize is 1<<i bytes.
func byteSize(i int) string {
	return fmt.Sprintf("%d%s", 1<<(i%10), []string{"B", "KiB", "MiB"}[i/10])
}

// carrier is the NCCL communicator that carries a call. Every rank finds the same one:
// symmetric memory is the same on all of them.
func (st *commState) carrier(c *call) *nccl.Comm {
	t := st.sym
	if t == nil || c.dblk == nil || c.sblk == nil || c.dblk.pool != &st.w.symmetric.pool || c.sblk.pool != c.dblk.pool || !t.paths.symmetric(c) {
		return st.nccl
	}
	return t.comm
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
		if nccl.Version() < 22700 {
			st.withoutSym(fmt.Sprintf("NCCL %s has no windows; 2.27 does", nccl.VersionString()))
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err := st.nccl.Split(ctx, 0, st.rank, nccl.Config{})
		if err != nil {
			return fmt.Errorf("a second communicator, for symmetric memory: %w", err)
		}
		st.sym = &symComm{comm: c}
		st.w.gpu.addNCCL(c)
	}
	window, err := st.sym.comm.RegisterWindow(ptr, n)
	if err != nil {
		return err
	}
	st.known[len(st.known)-1].window = window
	switch {
	case !window.Registered():
		st.withoutSym("NCCL has no windows on this machine")
		return st.closeSym()
	case first:
		return st.choosePaths()
	}
	return nil
}

// withoutSym says once why symmetric memory is no better than registered memory.
func (st *commState) withoutSym(why string) {
	st.noSym = true
	if st.w.Comm.st == st {
		st.w.Log.Info().Str("why", why).Msg("AllocSymmetric: small collectives have no faster path")
	}
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
// may hold the communicator any more.
func (st *commState) closeSym() error {
	var err error
	for i := range st.known {
		if w := st.known[i].window; w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if st.sym != nil {
		err = errors.Join(err, st.w.gpu.endNCCL(st.sym.comm))
		st.sym = nil
	}
	return err
}

// choosePaths sets what the second carries: all sizes with --symmetric always, else as an
// earlier run on the same kind of machine found, or as is measured now.
//
// Collective over st, in a turn; no collective is in flight. The caller holds g.issue.
func (st *commState) choosePaths() error {
	p := &st.sym.paths
	if st.w.cfg.Symmetric == "always" {
		for i := range p {
			p[i] = ^uint64(0)
		}
		return nil
	}
	key, err := st.pathsKey()
	if err != nil {
		return err
	}
	// What the ranks have of earlier runs may differ: that of the first counts.
	var found [1 + len(pathOps)]uint64
	if st.rank == 0 {
		if stored, ok := loadPaths(key); ok {
			found = [...]uint64{1, stored[0], stored[1], stored[2]}
		}
	}
	if err := st.mpi.Broadcast(unsafe.Pointer(&found), len(found), elem.Uint64, 0); err != nil {
		return err
	}
	how := "as measured by an earlier run"
	if found[0] != 0 {
		*p = paths(found[1:])
	} else {
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
		for i, op := range pathOps {
			line = line.Str(op.kind.String(), p.describe(i))
		}
		line.Msg("symmetric kernels carry these sizes of AllocSymmetric's memory")
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
	return fmt.Sprintf("%q, driver %d, NCCL %s, %d ranks on %s, %q",
		st.w.gpu.dev.Name(), cuda.DriverVersion(), nccl.VersionString(), st.size, where, set), nil
}

// pathsFile is the file of all that earlier runs measured; "" where there is no folder for it.
func pathsFile() string {
	if dir := nvrtc.DefaultCache().Dir; dir != "" {
		return filepath.Join(dir, "symmetric-paths")
	}
	return ""
}

// A line is three numbers and the key.
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
		var p paths
		head, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if n, _ := fmt.Sscanf(head, "%x %x %x", &p[0], &p[1], &p[2]); n == len(p) && rest == key {
			return p, true
		}
	}
	return paths{}, false
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
	_, err = fmt.Fprintf(f, "%x %x %x\t%s\n", p[0], p[1], p[2], key)
	return errors.Join(err, f.Close())
}

// measurePaths times both communicators with each collective and size. A size goes to
// the one whose slowest rank is faster.
func (st *commState) measurePaths() error {
	g, most := st.w.gpu, mostSize
	free, _, err := g.dev.MemInfo()
	if err != nil {
		return err
	}
	for most > leastSize && 2<<most > free/8 {
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
	var us [len(pathOps)][mostSize + 1][2]float64
	err = st.withKnown(mem, 2*n, func() error {
		h, err := g.dev.NewStream(0)
		if err != nil {
			return err
		}
		e, err := g.dev.NewEvent(false)
		for i := 0; i < len(pathOps) && err == nil; i++ {
			for size := leastSize; size <= most && err == nil; size++ {
				c := nccl.Call{Kind: pathOps[i].call, Type: elem.Float32, Op: Sum, Dst: mem, Src: unsafe.Add(mem, n), N: 1 << size / 4}
				if c.Kind != nccl.AllReduce {
					c.N = max(1, c.N/st.size)
				}
				for j, nc := range []*nccl.Comm{st.nccl, st.sym.comm} {
					if err == nil {
						us[i][size][j], err = timeCalls(g, h, e, nc, c, max(2, 16>>max(0, size-14)))
					}
				}
			}
		}
		if e != nil {
			err = errors.Join(err, e.Close())
		}
		return errors.Join(err, h.Close())
	})
	err = errors.Join(err, nccl.MemFree(g.dev, mem))
	if err != nil {
		return err
	}
	if err := st.mpi.AllReduce(unsafe.Pointer(&us), unsafe.Pointer(&us), int(unsafe.Sizeof(us)/8), elem.Float64, Max); err != nil {
		return err
	}
	for i := range us {
		for size := leastSize; size <= mostSize; size++ {
			if t := us[i][min(size, most)]; t[1] < t[0] {
				st.sym.paths[i] |= 1 << size
			}
		}
	}
	return nil
}

// withKnown runs fn while both communicators know the memory.
func (st *commState) withKnown(mem unsafe.Pointer, n int, fn func() error) error {
	reg, err := st.nccl.Register(mem, n)
	if err != nil {
		return err
	}
	window, err := st.sym.comm.RegisterWindow(mem, n)
	if err == nil {
		err = errors.Join(fn(), window.Close())
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

// timeCalls returns the least time of a few replays of a graph of so many calls, in us.
func timeCalls(g *gpu, h *cuda.Stream, e *cuda.Event, nc *nccl.Comm, c nccl.Call, calls int) (us float64, err error) {
	const replays = 4 // beside the first
	if err := h.BeginCapture(cuda.Relaxed); err != nil {
		return 0, err
	}
	for range calls {
		if err := nc.Group(h, []nccl.Call{c}); err != nil {
			return 0, errors.Join(err, h.Abandon())
		}
	}
	graph, err := h.EndCapture()
	if err != nil {
		return 0, err
	}
	x, err := graph.Instantiate()
	if err = errors.Join(err, graph.Close()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for i := range 1 + replays {
		start := time.Now()
		if err := errors.Join(x.Launch(h), e.Record(h)); err != nil {
			return 0, err
		}
		for done := false; !done; {
			if done, err = e.Spin(spinSlice); err != nil {
				return 0, err
			}
			if time.Since(start) > patience {
				return 0, errImpatient
			}
		}
		if t := float64(time.Since(start).Nanoseconds()) / 1e3; i == 1 || i > 1 && t < us {
			us = t
		}
	}
	return us, nil
}
