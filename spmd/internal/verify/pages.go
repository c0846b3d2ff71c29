package verify

// pages are the ranks' last news of a communicator.
type pages struct {
	of   map[int]*page     // by who has sent it
	sums map[uint64]uint64 // at counts of levels; each of a page that is in of, or was
	most int               // sums before those are forgotten that only old pages had
}

// hear takes a page of a rank. It says where the page differs from another rank's, or "".
//
// Comparing each page with each other would fill rank 0's time in a large job. So hear compares
// sums. It looks at the pages only if a sum is not the one that was told before. A page that is
// still there has told all its sums: if such a look finds nothing, the sum was of a page that is
// gone.
func (p *pages) hear(rank int, said *page) string {
	if p.of == nil {
		p.of, p.sums = map[int]*page{}, map[uint64]uint64{}
	}
	p.of[rank] = said
	if p.note(said) {
		for other, o := range p.of {
			a, b, ra, rb := o, said, o.of(other), said.of(rank)
			if ra > rb {
				a, b, ra, rb = b, a, rb, ra
			}
			if text := differ(a, b, ra, rb); text != "" {
				return text
			}
		}
	}
	if len(p.sums) > p.most {
		clear(p.sums)
		for _, o := range p.of {
			p.note(o)
		}
		p.most = 2*len(p.sums) + 64
	}
	return ""
}

// note notes the sums of a page, and says whether one differs from a page before.
func (p *pages) note(said *page) (other bool) {
	for _, at := range said.Levels {
		sum, known := p.sums[at[0]]
		other = other || known && sum != at[1]
		p.sums[at[0]] = at[1]
	}
	return other
}
