package cudnn

import (
	"errors"
	"fmt"
	"unsafe"
)

// graph is a computation under construction. It keeps the first failure: later steps do nothing.
type graph struct {
	h   handle
	all []descriptor // in the order in which they were made
	ops []descriptor
	ids int64
	err error
}

// tensor is an operand or an intermediate result of a graph, always of four dimensions.
type tensor struct {
	d             descriptor
	id            int64
	dims, strides [4]int64
	typ           int32
}

// attribute is one setting of a descriptor.
type attribute struct {
	name, typ, n int
	p            unsafe.Pointer
}

func of[T any](name, typ int, v ...T) attribute {
	return attribute{name, typ, len(v), unsafe.Pointer(unsafe.SliceData(v))}
}

func link(name int, d descriptor) attribute { return of(name, typeDescriptor, d) }

// make makes a descriptor, sets its attributes and finalizes it.
func (g *graph) make(what string, kind int, attrs ...attribute) descriptor {
	d := g.create(what, kind)
	for _, a := range attrs {
		if g.err == nil {
			if err := sysSet(g.h, d, a.name, a.typ, a.n, a.p); err != nil {
				g.err = fmt.Errorf("attribute %d of %s: %w", a.name, what, err)
			}
		}
	}
	if g.err == nil {
		if err := sysFinalize(g.h, d); err != nil {
			g.err = fmt.Errorf("%s: %w", what, err)
		}
	}
	return d
}

// create makes a descriptor that is yet to be filled.
func (g *graph) create(what string, kind int) (d descriptor) {
	if g.err != nil {
		return nil
	}
	if d, g.err = sysDescriptor(g.h, kind); g.err != nil {
		g.err = fmt.Errorf("%s: %w", what, g.err)
		return nil
	}
	g.all = append(g.all, d)
	return d
}

// close gives back the descriptors, the last made first.
func (g *graph) close() error {
	var errs []error
	for i := len(g.all) - 1; i >= 0; i-- {
		errs = append(errs, sysDestroyDescriptor(g.h, g.all[i]))
	}
	g.all = nil
	return errors.Join(errs...)
}

// tensor adds one with its place in memory, which a run is given.
func (g *graph) tensor(typ int32, dims, strides [4]int64) tensor {
	return g.addTensor(typ, dims, strides, given)
}

// between adds an intermediate result, which has no place in memory.
func (g *graph) between(typ int32, dims, strides [4]int64) tensor {
	return g.addTensor(typ, dims, strides, between)
}

// scalar adds a number that a run reads from host memory.
func (g *graph) scalar() tensor {
	one := [4]int64{1, 1, 1, 1}
	return g.addTensor(dataFloat32, one, one, number)
}

const operandAlignment = 16 // bytes

// role is where a run has a tensor.
type role int

const (
	given   role = iota // in memory that the run is given
	between             // nowhere: the engine keeps it
	number              // in host memory, one element
)

func (g *graph) addTensor(typ int32, dims, strides [4]int64, r role) tensor {
	g.ids++
	t := tensor{id: g.ids, dims: dims, strides: strides, typ: typ}
	t.d = g.make("a tensor", kindTensor, of(attrTensorType, typeDataType, typ),
		of(attrTensorDims, typeInt64, dims[:]...),
		of(attrTensorStrides, typeInt64, strides[:]...), of(attrTensorID, typeInt64, t.id),
		of(attrTensorAlignment, typeInt64, int64(operandAlignment)), of(attrTensorVirtual, typeBoolean, r == between),
		of(attrTensorByValue, typeBoolean, r == number))
	return t
}

// swapped returns a tensor's dims and strides with the last two changed places.
func swapped(v [4]int64) [4]int64 { return [4]int64{v[0], v[1], v[3], v[2]} }

// packed returns the strides of a tensor without gaps whose last dimension comes first.
func packed(d [4]int64) [4]int64 { return [4]int64{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1} }

// matmul adds c = a b, of the last two dimensions, summed in float32.
func (g *graph) matmul(a, b, c tensor) tensor {
	m := g.make("a matrix product", kindMatmul, of(attrMatmulMath, typeDataType, int32(dataFloat32)))
	g.op("a matrix product", kindOperationMatmul, link(attrOpMatmulA, a.d), link(attrOpMatmulB, b.d),
		link(attrOpMatmulC, c.d), link(attrOpMatmul, m))
	return c
}

// pointwise adds y = mode(x, operands...). An operand may be broadcast. The first operand is b, the
// second the predicate t.
func (g *graph) pointwise(mode int32, y, x tensor, operands ...tensor) tensor {
	math := int32(dataFloat32)
	if mode == pointwiseGE {
		math = dataBoolean
	}
	return g.addPointwise(y, x, operands, of(attrPointwiseMode, typePointwiseMode, mode),
		of(attrPointwiseMath, typeDataType, math))
}

// index adds the position of each element of x along an axis.
func (g *graph) index(axis int64, x tensor) tensor {
	y := g.between(dataInt32, x.dims, x.strides)
	return g.addPointwise(y, x, nil, of(attrPointwiseMode, typePointwiseMode, int32(pointwiseIndex)),
		of(attrPointwiseMath, typeDataType, int32(dataFloat32)), of(attrPointwiseAxis, typeInt64, axis))
}

func (g *graph) addPointwise(y, x tensor, operands []tensor, attrs ...attribute) tensor {
	p := g.make("a pointwise operation", kindPointwise, attrs...)
	links := []attribute{link(attrOpPointwise, p), link(attrOpPointwiseX, x.d), link(attrOpPointwiseY, y.d)}
	for i, o := range operands {
		links = append(links, link([]int{attrOpPointwiseB, attrOpPointwiseT}[i], o.d))
	}
	links = append(links, of(attrOpPointwiseAlpha1, typeFloat, float32(1)),
		of(attrOpPointwiseAlpha2, typeFloat, float32(1)))
	g.op("a pointwise operation", kindOperationPointwise, links...)
	return y
}

// reduce adds the sums or the maxima of x over the dimensions that y lacks.
func (g *graph) reduce(operator int32, y, x tensor) tensor {
	r := g.make("a reduction", kindReduction, of(attrReductionMath, typeDataType, int32(dataFloat32)),
		of(attrReductionOperator, typeReductionOperator, operator))
	g.op("a reduction", kindOperationReduction, link(attrOpReduction, r), link(attrOpReductionX, x.d),
		link(attrOpReductionY, y.d))
	return y
}

// reshape adds x seen with the dimensions and strides of y, and its type.
func (g *graph) reshape(y, x tensor) tensor {
	g.op("a reshape", kindOperationReshape, link(attrOpReshapeX, x.d), link(attrOpReshapeY, y.d))
	return y
}

func (g *graph) op(what string, kind int, attrs ...attribute) {
	g.ops = append(g.ops, g.make(what, kind, attrs...))
}

// engine is the choice for running a graph.
type engine struct {
	plan          descriptor
	index         int64
	workspace     int // bytes
	deterministic bool
	proposed      int // how many there were
}

// finish takes engine number choice of the proposed ones, best first. If that cannot be made ready
// for the device, it takes the first that can.
func (g *graph) finish(choice int) (e engine, err error) {
	ops := g.make("the graph", kindOperationGraph, of(attrGraphHandle, typeHandle, unsafe.Pointer(g.h.h)),
		of(attrGraphOps, typeDescriptor, g.ops...))
	heuristic := g.make("the heuristic", kindEngineHeuristic, link(attrHeuristicGraph, ops),
		of(attrHeuristicMode, typeHeuristicMode, int32(heuristicA)))
	if g.err != nil {
		return e, g.err
	}
	n, err := sysGet(g.h, heuristic, attrHeuristicResults, typeDescriptor, 0, nil)
	if err != nil {
		return e, err
	}
	configs := make([]descriptor, n)
	for i := range configs {
		configs[i] = g.create("an engine's configuration", kindEngineConfig)
	}
	if g.err != nil {
		return e, g.err
	}
	if n > 0 {
		if n, err = sysGet(g.h, heuristic, attrHeuristicResults, typeDescriptor, n,
			unsafe.Pointer(&configs[0])); err != nil {
			return e, err
		}
	}
	if n == 0 {
		return e, fmt.Errorf("no engine for this graph: %w", ErrNotSupported)
	}
	configs = configs[:n]
	e.proposed = n
	if choice > 0 && choice < n {
		configs = append([]descriptor{configs[choice]}, configs...)
	}
	var first error
	for _, config := range configs {
		e.plan = g.make("a plan", kindExecutionPlan, of(attrPlanHandle, typeHandle, unsafe.Pointer(g.h.h)),
			link(attrPlanEngineConfig, config))
		if g.err == nil {
			return g.describe(e, config)
		}
		if first == nil {
			first = g.err
		}
		g.err = nil
	}
	return e, fmt.Errorf("none of %d engines can be made ready: %w", n, first)
}

// describe asks for the facts of a plan that is ready.
func (g *graph) describe(e engine, config descriptor) (engine, error) {
	var bytes int64
	if _, err := sysGet(g.h, e.plan, attrPlanWorkspace, typeInt64, 1, unsafe.Pointer(&bytes)); err != nil {
		return e, err
	}
	e.workspace = int(bytes)
	chosen := g.create("an engine", kindEngine)
	if g.err != nil {
		return e, g.err
	}
	if _, err := sysGet(g.h, config, attrEngineConfigEngine, typeDescriptor, 1, unsafe.Pointer(&chosen)); err != nil {
		return e, err
	}
	if _, err := sysGet(g.h, chosen, attrEngineIndex, typeInt64, 1, unsafe.Pointer(&e.index)); err != nil {
		return e, err
	}
	var notes [32]int32
	n, err := sysGet(g.h, chosen, attrEngineNumericalNote, typeNumericalNote, len(notes), unsafe.Pointer(&notes))
	if err != nil {
		return e, err
	}
	e.deterministic = true
	for _, note := range notes[:min(n, len(notes))] {
		e.deterministic = e.deterministic && note != noteNondeterministic
	}
	return e, nil
}
