package checkpoint

import (
	"fmt"
	"slices"

	"lockstep/spmd"
)

// Cut says where the elements of a part lie in an array: in runs, such as some columns of a matrix,
// or the same rows of several. Element j of the part is element First + j/Run·Stride + j%Run of the
// array. The zero Cut is the whole array.
type Cut struct {
	First  int `json:"first,omitempty"`
	Run    int `json:"run,omitempty"`
	Stride int `json:"stride,omitempty"`
}

// mostRuns is the most runs that all parts of an array may have.
const mostRuns = 1 << 22

// Strided is Sharded for an array that is cut: this rank has the elements [off, off+b.Len()) of a
// part of it. Several ranks may have the same part, and save different elements.
func Strided[T spmd.Elem](name string, b spmd.Buffer[T], off int, cut Cut, total int) Item {
	i := Sharded(name, b, off, total)
	i.cut = cut
	return i
}

// inside reports whether the elements of a part are in an array of n elements.
func (p part) inside(n int) bool {
	if p.Off < 0 || p.Len < 0 || p.Len > n || p.Off > n-p.Len {
		return false
	}
	c := p.Cut
	if c == (Cut{}) || p.Len == 0 {
		return true
	}
	if c.First < 0 || c.Run <= 0 || c.Stride < c.Run || c.First >= n {
		return false
	}
	last := p.Off + p.Len - 1
	return last/c.Run <= (n-1-c.First)/c.Stride && c.First+last/c.Run*c.Stride+last%c.Run < n
}

// runs returns the most runs that a part has.
func (p part) runs() int {
	if p.Run == 0 {
		return 1
	}
	return p.Len/p.Run + 2
}

// stretch is n elements that lie together: in the array from global on, in its part from local on.
type stretch struct{ global, local, n int }

// stretch returns the stretch that begins with element j of the part.
func (p part) stretch(j int) stretch {
	end := p.Off + p.Len
	if p.Run == 0 {
		return stretch{j, j, end - j}
	}
	return stretch{p.First + j/p.Run*p.Stride + j%p.Run, j, min(p.Run-j%p.Run, end-j)}
}

// meet calls fn with the n elements that two parts of an array have in common, a stretch at a time.
// inP and inQ are their places in the parts, counted as the parts' offsets are.
func meet(p, q part, fn func(inP, inQ, n int) error) error {
	for i, j := p.Off, q.Off; i < p.Off+p.Len && j < q.Off+q.Len; {
		a, b := p.stretch(i), q.stretch(j)
		lo, hi := max(a.global, b.global), min(a.global+a.n, b.global+b.n)
		if lo < hi {
			if err := fn(i+lo-a.global, j+lo-b.global, hi-lo); err != nil {
				return err
			}
		}
		if a.global+a.n <= b.global+b.n {
			i += a.n
		}
		if b.global+b.n <= a.global+a.n {
			j += b.n
		}
	}
	return nil
}

// covers checks that the parts of an array do not overlap and leave nothing out.
func covers(a array, parts []part) error {
	runs := 0
	for _, p := range parts {
		runs += p.runs()
	}
	if runs > mostRuns {
		return fmt.Errorf("%q: its parts have %d runs, and %d is the most", a.Name, runs, mostRuns)
	}
	all := make([]stretch, 0, runs)
	for _, p := range parts {
		for j := p.Off; j < p.Off+p.Len; {
			s := p.stretch(j)
			all = append(all, s)
			j += s.n
		}
	}
	slices.SortFunc(all, func(s, t stretch) int { return s.global - t.global })
	end := 0
	for _, s := range all {
		if s.global < end {
			return fmt.Errorf("%q: element %d is in the parts of two ranks", a.Name, s.global)
		}
		if s.global > end {
			break
		}
		end += s.n
	}
	if end != a.Len {
		return fmt.Errorf("%q: element %d of %d is in no rank's part", a.Name, end, a.Len)
	}
	return nil
}

// scatter reads the elements that part p of a file and own, this rank's part of an item, have in
// common. It puts them into the item's buffer, which starts at element i.off.
func (s *shard) scatter(i *Item, p, own part) error {
	size := i.typ.Size()
	var have []byte // of own, once there is something for it
	err := meet(own, p, func(to, from, n int) error {
		if have == nil {
			have = make([]byte, own.Len*size)
			if err := i.read(have, own.Off-i.off); err != nil {
				return err
			}
		}
		at := (to - own.Off) * size
		_, err := s.ReadAt(have[at:at+n*size], s.tensors[i.name].Off+int64(from-p.Off)*int64(size))
		return err
	})
	if err == nil && have != nil {
		err = i.write(own.Off-i.off, have)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", i.name, err)
	}
	return nil
}
