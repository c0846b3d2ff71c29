package translate

import (
	"fmt"
	"strings"

	"lockstep/internal/translate/cpp"
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

// packs writes the work of blocks whose indices all exist, if all such slices are aligned.
func (u *unit) packs(b *strings.Builder, k *kernel, index, extent, block string, unused func(string) string) {
	elements, packs := k.wide()
	if elements == 0 {
		return
	}
	first, p, e := unused("first_"), unused("p_"), unused("e_")
	var fits, declared, loads, stores, args, plain []string
	for i, q := range k.params {
		n := cpp.Safe(q.v.Name())
		plain = append(plain, n)
		o := k.body.Own[i+k.dims]
		if o == nil {
			args = append(args, n)
			continue
		}
		pack := unused(n + "_pack")
		fits = append(fits, fmt.Sprintf("spmd::fits<%d>(%s, %s)", elements, n, extent))
		declared = append(declared, fmt.Sprintf("\t\tspmd::pack<%s, %d> %s[%d];\n", q.c, elements, pack, packs))
		at := fmt.Sprintf("%s + %s * %d", first, p, elements)
		if o.Read {
			loads = append(loads, fmt.Sprintf("\t\t\t%s[%s].load(%s, %s * spmd::THREADS);\n", pack, p, n, at))
		}
		if o.Written {
			stores = append(stores, fmt.Sprintf("\t\t\t%s[%s].store(%s, %s * spmd::THREADS);\n", pack, p, n, at))
		}
		args = append(args, fmt.Sprintf("%s[%s].one(%s, %s)", pack, p, n, e))
	}
	fmt.Fprintf(b, "\tif (spmd::whole<%d>(%s, %s) && %s) {\n",
		elements*packs, extent, block, strings.Join(fits, " && "))
	if k.body.Guarded {
		fmt.Fprintf(b, "\t\tif (go::%s_skips_<%s>(SPMD_HERE_AND 0, %s)) return;\n",
			k.body.Name, index, strings.Join(plain, ", "))
	}
	fmt.Fprintf(b, "\t\tconst int64_t %s = (int64_t)%s * (%d * spmd::THREADS) + threadIdx.x * %d;\n%s",
		first, block, elements*packs, elements, strings.Join(declared, ""))
	loop := func(body []string) {
		if len(body) > 0 {
			fmt.Fprintf(b, "#pragma unroll\n\t\tfor (int %s = 0; %s < %d; %s++) {\n%s\t\t}\n",
				p, p, packs, p, strings.Join(body, ""))
		}
	}
	loop(loads)
	loop([]string{fmt.Sprintf("#pragma unroll\n\t\t\tfor (int %s = 0; %s < %d; %s++) go::%s<%s>(SPMD_HERE_AND %s + "+
		"%s * %d * spmd::THREADS + %s, %s);\n",
		e, e, elements, e, k.body.Name, index, first, p, elements, e, strings.Join(args, ", "))})
	loop(stores)
	if k.loops {
		b.WriteString("\t\tcontinue;\n\t}\n")
		return
	}
	b.WriteString("\t\treturn;\n\t}\n")
}
