package cublas

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Shape is the part of a product that decides its algorithm: sizes, strides, transpositions, types,
// epilogue, whether something is added, alignments, workspace.
type Shape struct{ key planKey }

// String names a shape: two are the same if their names are.
func (s Shape) String() string { return fmt.Sprintf("%+v", s.key) }

// Flops returns the number of floating-point operations of a product.
func (s Shape) Flops() float64 {
	return 2 * float64(s.key.count) * float64(s.key.m) * float64(s.key.n) * float64(s.key.k)
}

// Choice is an algorithm for a shape, valid for the version of the library and the kind of device
// that it was made on.
type Choice struct {
	Algo      [8]uint64
	Workspace int
}

// Timing is Tune's measurement: the time of a product by the library's first choice, and by the
// taken one, and how many algorithms there were.
type Timing struct {
	First, Best time.Duration
	Tried       int
}

// Shapes returns the shapes of the products so far, in their order, without those whose epilogue
// the library does not have.
func (l *Lt) Shapes() []Shape {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Clone(l.met)
}

// Version returns the library's version, such as 130000. Source: cublasLt.h, cublasLtGetVersion.
func (l *Lt) Version() int { return sysLtVersion() }

// Choose makes later products of a shape, which has been met, use an algorithm that Tune chose.
// Graphs that were captured before keep theirs.
func (l *Lt) Choose(sh Shape, c Choice) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.plans[sh.key]
	if l.h == nil || p == nil || p.plan == nil {
		return fmt.Errorf("cublas: Choose: no product of %v", sh)
	}
	if c.Workspace < 0 || c.Workspace > sh.key.workspace {
		return fmt.Errorf("cublas: Choose: a workspace of %d bytes, of which there are %d", c.Workspace,
			sh.key.workspace)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sysSetAlgorithm(p.plan, c)
	return nil
}

// mostAlgorithms is the most answers of the heuristic that are timed.
const mostAlgorithms = 24

// Tune times the algorithms that the library proposes for a shape, on random numbers in memory of
// its own, on s. It returns the fastest, and the library's first unless another is faster by more
// than 1 %. It waits for the device, and takes little more than limit, which is spent in the
// library's order. It changes nothing: see Choose. It fails with cuda.ErrOutOfMemory without room
// for the operands.
func (l *Lt) Tune(s *cuda.Stream, sh Shape, limit time.Duration) (c Choice, t Timing, err error) {
	b := &trial{l: l, s: s, g: sh.key.gemm()}
	if sh.key.adds {
		b.g.Beta = 1
	}
	defer func() { err = cmp.Or(err, b.close()) }()
	if err = b.open(sh); err != nil {
		return c, t, err
	}
	list := make([]candidate, b.n)
	start := time.Now()
	for i := range list {
		list[i].number = i
		if i >= 4 && time.Since(start) > limit/2 {
			list = list[:i]
			break
		}
		list[i].failed = b.warm(i) != nil
		if err = b.measure(&list[i], 300*time.Microsecond); err != nil {
			return c, t, err
		}
	}
	first := &list[0]
	ranked := make([]*candidate, 0, len(list))
	for i := range list {
		if !list[i].failed {
			ranked = append(ranked, &list[i])
		}
	}
	if len(ranked) == 0 {
		return c, t, fmt.Errorf("cublas: Tune: no algorithm for %v runs", sh)
	}
	// Algorithms near the best run again, turn and turn about with the first.
	slices.SortStableFunc(ranked, func(x, y *candidate) int { return cmp.Compare(x.best, y.best) })
	near := slices.DeleteFunc(slices.Clone(ranked),
		func(x *candidate) bool { return x.best > ranked[0].best*11/10 && x != first })
	near = near[:min(len(near), 5)]
	if !first.failed && !slices.Contains(near, first) {
		near = append(near, first)
	}
	for round := 0; round < 3 && (round == 0 || time.Since(start) < limit); round++ {
		for _, x := range near {
			if err = b.measure(x, time.Millisecond); err != nil {
				return c, t, err
			}
		}
	}
	best := slices.MinFunc(near, func(x, y *candidate) int { return cmp.Compare(x.best, y.best) })
	if !first.failed && best.best > first.best*99/100 {
		best = first
	}
	return b.choice(best.number), Timing{First: first.best, Best: best.best, Tried: len(list)}, nil
}

// candidate is an algorithm and its least time.
type candidate struct {
	number int
	best   time.Duration // 0 until measured
	failed bool
}

// trial is a product with operands of its own.
type trial struct {
	l      *Lt
	s      *cuda.Stream
	g      Gemm
	x      Beside
	plan   plan
	n      int
	found  [1 + mostAlgorithms]algorithm // the first is the products' present one
	events [2]*cuda.Event
	memory unsafe.Pointer
	host   unsafe.Pointer
	operands
}

func (k *planKey) gemm() Gemm {
	return Gemm{M: k.m, N: k.n, K: k.k, Count: k.count, TransA: k.ta, TransB: k.tb, LdA: k.lda, LdB: k.ldb,
		LdC: k.ldc, AB: k.ab, C: k.c, Alpha: 1,
		Epilogue: k.epilogue, FastAccum: k.fast}
}

// open makes the operands and asks for the algorithms.
func (b *trial) open(sh Shape) error {
	d, k := b.l.d, &sh.key
	rowsA, rowsB := k.m, k.k
	if k.ta {
		rowsA = k.k
	}
	if k.tb {
		rowsB = k.n
	}
	matrix := k.count * k.m * k.ldc * k.c.Size()
	// Each lies as it did: aligned to no more than its power of two.
	total := 0
	place := func(bytes int, align uint8) int {
		at := total + 1<<align%256
		total = (at + bytes + 255) / 256 * 256
		return at
	}
	atA, atB, atC := place(k.count*rowsA*k.lda*k.ab.Size(), k.alignA),
		place(k.count*rowsB*k.ldb*k.ab.Size(), k.alignB), place(matrix, k.alignC)
	atAdd, atAux, atBias := atC, 0, 0
	if k.apart {
		atAdd = place(matrix, k.alignAdd)
	}
	if k.epilogue.aux() {
		atAux = place(matrix, 8)
	}
	if k.epilogue.bias() {
		atBias = place(k.n*k.c.Size(), 8)
	}
	random := total
	atScale := place(2*16, 8)
	atWork := place(k.workspace, 8)
	var err error
	if b.memory, err = d.Malloc(total); err != nil {
		return err
	}
	for i := range b.events {
		if b.events[i], err = d.NewTimedEvent(); err != nil {
			return err
		}
	}
	if err := b.fill(random); err != nil {
		return err
	}
	at := func(i int) unsafe.Pointer { return unsafe.Add(b.memory, i) }
	b.a, b.b, b.c, b.work, b.x.Add = at(atA), at(atB), at(atC), at(atWork), at(atAdd)
	if atAux > 0 {
		b.x.Aux = at(atAux)
	}
	if atBias > 0 {
		b.x.Bias = at(atBias)
	}
	if k.ab != k.c { // the filled memory has the type of A; memory of the type of C would hold anything
		if err := b.s.Fill(b.c, 1, 0, random-atC); err != nil {
			return err
		}
	}
	for i, x := range [...]struct {
		has bool
		at  *unsafe.Pointer
	}{{k.scaleA, &b.x.ScaleA}, {k.scaleB, &b.x.ScaleB}} {
		if !x.has {
			continue
		}
		*x.at = at(atScale + 16*i)
		if err := b.s.Fill(*x.at, 4, uint64(math.Float32bits(1)), 1); err != nil {
			return err
		}
	}
	return b.ask(sh)
}

// ask makes the plan as a product does, and collects the library's other proposals. Asked for one
// algorithm, the library need not name the one that it lists first when asked for many.
func (b *trial) ask(sh Shape) error {
	many, n, code, op := sysPlan(b.l.h, &sh.key, &b.x, b.found[1:])
	if code == 0 && many != nil {
		code, op = sysPlanFree(b.l.h, many)
	}
	if code == 0 {
		b.plan, _, code, op = sysPlan(b.l.h, &sh.key, &b.x, b.found[:1])
	}
	if code != 0 || b.plan == nil {
		return check(op, cmp.Or(code, int(ErrNotSupported)), sh.String())
	}
	b.n = 1
	first := b.choice(0)
	for i := 1; i <= n; i++ {
		if b.choice(i) != first {
			b.found[b.n] = b.found[i]
			b.n++
		}
	}
	return nil
}

// fill fills the first bytes of the memory with random numbers of the type of A, which repeat:
// products of zeros are too fast.
func (b *trial) fill(bytes int) error {
	const period = 1 << 20
	n := min(bytes, period)
	var err error
	if b.host, err = b.l.d.MallocHost(n); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	size := b.g.AB.Size()
	for i := 0; i+size <= n; i += size {
		p, v := unsafe.Add(b.host, i), r.NormFloat64()
		switch b.g.AB {
		case elem.Float16:
			*(*elem.F16)(p) = elem.ToF16(float32(v))
		case elem.BFloat16:
			*(*elem.BF16)(p) = elem.ToBF16(float32(v))
		case elem.Float8E4M3:
			*(*elem.F8E4M3)(p) = elem.ToF8E4M3(float32(v))
		case elem.Float8E5M2:
			*(*elem.F8E5M2)(p) = elem.ToF8E5M2(float32(v))
		case elem.Float32:
			*(*float32)(p) = float32(v)
		default:
			*(*float64)(p) = v
		}
	}
	if err := b.s.Copy(b.memory, b.host, n); err != nil {
		return err
	}
	for done := n; done < bytes; {
		more := min(done, bytes-done)
		if err := b.s.Copy(unsafe.Add(b.memory, done), b.memory, more); err != nil {
			return err
		}
		done += more
	}
	return b.s.Synchronize()
}

func (b *trial) run() error {
	code, op := sysMatmul(b.l.h, b.plan, b.s, &b.g, &b.x, b.operands)
	return check(op, code, "")
}

// warm runs algorithm i once, which may load code.
func (b *trial) warm(i int) error {
	sysSetAlgorithm(b.plan, b.choice(i))
	if err := b.run(); err != nil {
		return err
	}
	return b.s.Synchronize()
}

// measure runs a candidate that has not failed for about so long, once at least, and keeps its
// least time.
func (b *trial) measure(x *candidate, about time.Duration) error {
	if x.failed {
		return nil
	}
	sysSetAlgorithm(b.plan, b.choice(x.number))
	turn := func(n int) (time.Duration, error) {
		if err := b.events[0].Record(b.s); err != nil {
			return 0, err
		}
		for range n {
			if err := b.run(); err != nil {
				return 0, err
			}
		}
		if err := b.events[1].Record(b.s); err != nil {
			return 0, err
		}
		if err := b.events[1].Synchronize(); err != nil {
			return 0, err
		}
		d, err := b.events[1].Elapsed(b.events[0])
		return d / time.Duration(n), err
	}
	if x.best == 0 {
		d, err := turn(1)
		if err != nil || d > about/2 {
			x.best = max(d, 1)
			return err
		}
		x.best = max(d, 1)
	}
	d, err := turn(int(min(about/x.best+1, 20)))
	if err == nil {
		x.best = max(min(x.best, d), 1)
	}
	return err
}

func (b *trial) choice(i int) Choice { return choiceOf(&b.found[i]) }

func (b *trial) close() (err error) {
	if b.plan != nil {
		code, op := sysPlanFree(b.l.h, b.plan)
		err = check(op, code, "")
	}
	for _, e := range b.events {
		if e != nil {
			err = cmp.Or(err, e.Close())
		}
	}
	if b.host != nil {
		err = cmp.Or(err, b.l.d.FreeHost(b.host))
	}
	if b.memory != nil {
		err = cmp.Or(err, b.l.d.Free(b.memory))
	}
	return err
}
