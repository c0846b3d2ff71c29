package checkpoint

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/safetensors"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// Item is one array of a program's state, made by Replicated, Sharded or Strided.
type Item struct {
	name       string
	typ        elem.Type
	off, n     int // this rank's elements
	total      int
	cut        Cut
	replicated bool
	memory     library.Operand
	usable     func(w *spmd.World) error
	read       func(dst []byte, from int) error // elements of the buffer
	write      func(from int, src []byte) error
	share      func(c spmd.Comm, counts []int) error // makes whole what every rank has a part of
}

// Replicated returns an array that is the same on every rank. Each rank saves and loads an equal
// part of it.
func Replicated[T spmd.Elem](name string, b spmd.Buffer[T]) Item {
	i := Sharded(name, b, 0, b.Len())
	i.replicated = true
	i.share = func(c spmd.Comm, counts []int) error {
		off := 0
		for _, n := range counts[:c.Rank()] {
			off += n
		}
		return spmd.AllGatherV(c, b, b.Slice(off, off+counts[c.Rank()]), counts)
	}
	return i
}

// Sharded returns an array of total elements that the ranks share. This rank has the elements [off,
// off+b.Len()). In a save the parts of all ranks cover the array and do not overlap. In a load they
// may be any.
func Sharded[T spmd.Elem](name string, b spmd.Buffer[T], off, total int) Item {
	size := elem.Of[T]().Size()
	view := func(p []byte) []T { return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/size) }
	return Item{
		name: name, typ: elem.Of[T](), off: off, n: b.Len(), total: total,
		memory: library.Writes(name, b),
		usable: func(w *spmd.World) error { return own.CheckBuffer(b, w) },
		read: func(dst []byte, from int) error {
			return b.Slice(from, from+len(dst)/size).CopyTo(view(dst))
		},
		write: func(from int, src []byte) error {
			return b.Slice(from, from+len(src)/size).CopyFrom(view(src))
		},
	}
}

// part returns the elements that a rank saves, or has to read.
func (i *Item) part(rank, size int) part {
	if i.replicated {
		s := spmd.ShardOf(i.total, rank, size)
		return part{Off: s.Off, Len: s.Len}
	}
	return part{Off: i.off, Len: i.n, Cut: i.cut}
}

// checkItems refuses items that cannot be saved or loaded.
func (m *Manager) checkItems(items []Item) error {
	if m.closed {
		return errors.New("the checkpoints are closed")
	}
	seen := make(map[string]bool, len(items))
	for _, i := range items {
		if err := safetensors.CheckName(i.name); err != nil {
			return err
		}
		if seen[i.name] {
			return fmt.Errorf("two arrays are named %q", i.name)
		}
		seen[i.name] = true
		switch p := (part{Off: i.off, Len: i.n, Cut: i.cut}); {
		case p.inside(i.total):
		case i.cut == Cut{}:
			return fmt.Errorf("%q: elements [%d, %d+%d) of %d", i.name, i.off, i.off, i.n, i.total)
		default:
			return fmt.Errorf("%q: elements [%d, %d+%d), cut by %+v, of %d", i.name, i.off, i.off, i.n, i.cut, i.total)
		}
		if err := i.usable(m.w); err != nil {
			return fmt.Errorf("%q: %w", i.name, err)
		}
	}
	return nil
}
