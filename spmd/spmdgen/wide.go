package main

import (
	"fmt"
	"strings"

	"lockstep/spmd/spmdgen/internal/cpp"
)

// If a kernel of one index uses a slice only at x[i], the slice is moved 16 bytes at a time. A
// thread then has several neighbouring indices, and a copy of these elements of the slice. The
// function of the kernel is a template over the types of these slices.

// wide returns how many neighbouring indices a thread takes at once, and how often, or 0 if there
// is nothing to gain.
func (k *kernel) wide() (elements, packs int) {
	const largest = 800 // nodes of syntax
	if k.dims != 1 || k.row > 0 || k.op != "" || k.body.Loops || k.body.Size > largest || len(k.body.Own) == 0 {
		return 0, 0
	}
	size, readers := 0, 0
	for i, o := range k.body.Own {
		size = max(size, k.elementSize(i))
		if o.Read {
			readers++
		}
	}
	if packs = 1; readers <= 2 {
		packs = 2
	}
	return 16 / size, packs
}

// loopWord is in the comment of a kernel that mostly does nothing. The blocks of its fast form take
// several parts of the indices, one after the other: to begin a block for each part would take
// longer than all else.
const loopWord = "loop"

// line writes the loop of a kernel of one index. index is the name that the index has.
func (u *unit) line(
	b *strings.Builder, k *kernel, general bool, extent, index string, call func(...string) string,
) {
	elements, packs := k.wide()
	if general || elements == 0 {
		each := k.each()
		if general {
			each = 1
		}
		fmt.Fprintf(b, "\tspmd::each1<%d>(%s, [&](int64_t %s) { %s; }, blockIdx.x);\n",
			each, extent, index, call(index))
		return
	}
	var all []string
	for _, p := range k.params {
		all = append(all, cpp.Name(p.v.Name()))
	}
	if k.body.Guard != nil {
		fmt.Fprintf(b, "\tif (go::%s<uint32_t>(SPMD_HERE_AND 0, %s)) return;\n",
			u.Skips(k.body), strings.Join(all, ", "))
	}
	block := "blockIdx.x"
	if k.loops {
		block = "block"
		fmt.Fprintf(b, "\tfor (int64_t %s = blockIdx.x; %s * (%d * spmd::THREADS) < %s; %s += gridDim.x)\n\t",
			block, block, elements*packs, extent, block)
	}
	names, uses := k.uses()
	fmt.Fprintf(b, "\tspmd::each_wide<%d, %d>(%s, %s, [&](int64_t %s%s) { %s; }%s);\n",
		elements, packs, extent, block, index, names, call(index), uses)
}

// uses returns the slices that a kernel uses only at its index, as parameters and as arguments in
// C++.
func (k *kernel) uses() (params, args string) {
	for i, p := range k.params {
		if o := k.body.Own[i+k.dims]; o != nil {
			n := cpp.Name(p.v.Name())
			params += ", auto " + n
			args += fmt.Sprintf(", spmd::use<%v, %v>(%s)", o.Read, o.Written, n)
		}
	}
	return params, args
}
