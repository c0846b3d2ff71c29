package main

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"lockstep/spmd/spmdgen/internal/cpp"
)

// source returns the whole CUDA source.
func (u *unit) source(all [][]*kernel) string {
	text := "#include \"spmd_go.cuh\"\n"
	if slices.ContainsFunc(all, func(list []*kernel) bool { return list[0].row > 0 }) {
		text += "#include \"spmd_rows.cuh\"\n"
	}
	text += u.Source()
	for _, list := range all {
		text += u.entries(list)
	}
	return text
}

// entries writes the instances of a kernel, and names them.
func (u *unit) entries(list []*kernel) string {
	const self = "\x00"
	var args [][]types.Type
	for _, k := range list {
		args = append(args, k.args)
	}
	texts, one := u.Instances(args, func(i int) string { return u.entry(list[i], self) })
	name := u.symbol(list[0].fn.Name())
	for i, k := range list {
		k.symbol = name
		switch {
		case one:
			k.types = u.CType(token.NoPos, k.instance)
		case k.instance != nil:
			k.symbol = u.symbol(k.fn.Name() + "_" + cpp.InstanceName(k.instance))
		}
		if i < len(texts) {
			texts[i] = strings.ReplaceAll(texts[i], self, k.symbol)
		}
	}
	return strings.Join(texts, "")
}

// symbol returns a name that no other kernel has.
func (u *unit) symbol(name string) string {
	name = strings.TrimSuffix(cpp.Name(name), "_")
	for n, k := name, 2; ; k++ {
		if !u.taken[n] {
			u.taken[n] = true
			return n
		}
		n = fmt.Sprintf("%s_%d", name, k)
	}
}

// entry writes a kernel as a template over the type I of indices. It has 32 bits if buffers are
// shorter than 2^31, and none that is written overlaps another.
func (u *unit) entry(k *kernel, name string) string {
	var params, args, extents []string
	is := indices[:k.dims]
	for _, i := range is {
		params, extents = append(params, "int64_t n"+i), append(extents, "n"+i)
	}
	op, before, result := "", "", ""
	if k.op != "" {
		result = u.CType(token.NoPos, k.result)
		op = fmt.Sprintf("spmd::op_%s<%s>", k.op, result)
		if k.by != nil {
			op = fmt.Sprintf("spmd::op_named<%s, by_%s<%sI>>", result, name, cpp.Given)
			before = fmt.Sprintf("template <%stypename I> struct by_%s {\n"+
				"\tSPMD_INLINE static %s call(%s a, %s b) {\n"+
				"\t\tspmd::report *spmd_report = nullptr;\n\t\tSPMD_KERNEL(%q)\n"+
				"\t\treturn %s(SPMD_HERE_AND a, b);\n\t}\n};\n",
				cpp.More, name, result, result, result, k.byName, u.Call(k.by))
		}
		params = append(params, fmt.Sprintf("spmd::ptr<I, %s> out", result))
	}
	wide, owned, uses := k.wide() > 0 || k.pack() > 1, "", ""
	views := ""
	for i, p := range k.params {
		n, o := cpp.Name(p.v.Name()), k.body.Own[i+k.dims]
		of := p.c
		if !p.written {
			of = "const " + of
		}
		switch p.kind {
		case slice:
			params = append(params, fmt.Sprintf("spmd::ptr<I, %s> %sp", of, n), "int64_t "+n+"n")
			views += fmt.Sprintf(" spmd::slice<%s, I> %s{(%s *)%sp, %sn};", p.c, n, p.c, n, n)
			if wide && o != nil {
				owned += ", auto " + n
				uses += fmt.Sprintf(", spmd::use<%v, %v>(%s)", o.Read, o.Written, n)
			}
		case pointer:
			params = append(params, fmt.Sprintf("spmd::ptr<I, %s> %sp", of, n))
			views += fmt.Sprintf(" %s *%s = (%s *)%sp;", p.c, n, p.c, n)
		case structure:
			params = append(params, "const __grid_constant__ "+p.c+" "+n)
		default:
			if params = append(params, p.c+" "+n); p.small {
				views += fmt.Sprintf(" %s = spmd::narrow<I>(%s);", n, n)
			}
		}
		args = append(args, n)
	}
	body := fmt.Sprintf("[&](int64_t %s%s) { return %s(SPMD_HERE_AND %s); }%s", strings.Join(is, ", int64_t "), owned,
		u.Call(k.body), strings.Join(slices.Concat(is, args), ", "), uses)
	n := strings.Join(extents, ", ")
	switch {
	case k.op != "":
		body = fmt.Sprintf("reduce%d<%s, I>(out, %s, %s)", k.dims, op, n, body)
	case k.row > 0:
		body = fmt.Sprintf("each_row<%d>(%s, %s)", k.row, n, body)
	case wide:
		body = fmt.Sprintf("each_wide<%d, %v>(I(), %s, %s)", k.packs(), k.loops, n, body)
	default:
		body = fmt.Sprintf("each%d<%d>(I(), %s, %s)", k.dims, k.each(), n, body)
	}
	if wide && k.op == "" && k.body.Guard != nil {
		body = fmt.Sprintf("if (sizeof(I) == 8 || !%s(SPMD_HERE_AND 0, %s))\n\t\tspmd::%s", u.Skips(k.body),
			strings.Join(args, ", "), body)
	} else {
		body = "spmd::" + body
	}
	text := fmt.Sprintf("%stemplate <%stypename I = uint32_t> __global__ void __launch_bounds__(%d) %s_(%s) "+
		"{ SPMD_KERNEL(%q)%s\n\t%s;\n}\n",
		before, cpp.More, k.threads(), name, strings.Join(append(params, "spmd::report *spmd_report"), ", "),
		k.fn.Name(), views, body)
	if k.op != "" {
		text += fmt.Sprintf("template <%stypename I = uint32_t> __global__ void __launch_bounds__(256) "+
			"%s_parts(%s *out, const %s *part, int64_t n) { spmd::reduce_parts<%s>(out, part, n); }\n",
			cpp.More, name, result, result, op)
	}
	return text
}

// A kernel of one index that uses a slice only at x[i] has the slice moved 16 bytes at a time. A
// thread then has several neighbouring indices, and a copy of these elements of the slice. The
// function of the kernel is a template over the types of these slices.

// elements returns how many neighbouring indices fill 16 bytes of the slices that it uses so, or 0
// if it is too long, of so many nodes of syntax, to gain by it. No slice counts as smaller.
func (k *kernel) elements(longest, smallest int) int {
	if k.dims != 1 || k.row > 0 || k.body.Loops || k.body.Size > longest || len(k.body.Own) == 0 {
		return 0
	}
	for i := range k.body.Own {
		smallest = max(smallest, k.elementSize(i))
	}
	return 16 / smallest
}

// wide returns how many neighbouring indices a thread takes at once, or 0 if there is nothing to
// gain.
func (k *kernel) wide() int {
	if k.op != "" {
		return 0
	}
	return k.elements(800, 1)
}

// packs returns how often it does, before it uses the first.
func (k *kernel) packs() int {
	readers := 0
	for _, o := range k.body.Own {
		if o.Read {
			readers++
		}
	}
	if readers > 2 {
		return 1
	}
	return 2
}

// pack returns how many neighbouring indices a thread takes at once in a reduction.
func (k *kernel) pack() int {
	if k.op == "" {
		return 1
	}
	return max(1, k.elements(150, 2))
}

// elementSize returns the element size of the slice at a place among the parameters.
func (k *kernel) elementSize(i int) int {
	return int(types.SizesFor("gc", "amd64").Sizeof(k.params[i-k.dims].t.Underlying().(*types.Slice).Elem()))
}

// each returns how many indices a thread takes: several if the loads of one need not wait for
// those of another.
func (k *kernel) each() int {
	small := 150 // nodes of syntax
	if k.dims > 1 {
		small = 400
	}
	switch n := k.wide(); {
	case n > 0:
		return n * k.packs()
	case k.row > 0 || k.op != "" || k.body.Loops || k.body.Size >= small:
		return 1
	}
	return 4
}

func (k *kernel) threads() int {
	if k.row <= 32 {
		return 256
	}
	return k.row
}
