// Package arrayfile reads and writes arrays that ranks share. It knows .npy files, NumPy's format,
// and raw files, which hold the elements alone. All ranks read or write their parts of one file at
// the same time.
//
// A file is written under another name. It gets its own once all parts are on the disk, so an old
// file is never half replaced. An error on one rank is an error on all, and names that rank.
package arrayfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/runfiles"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// limit is how long one read or write of a piece may take before the job counts as hanging.
const limit = 10 * time.Minute

// What Save does with a file that exists.
const Refuse, Replace = false, true

// Save writes an array of a shape. This rank has the elements of b from number off on, row by row.
// The parts of all ranks make up the array. A file that exists is refused, unless replace is
// Replace.
//
// Collective over c, blocking; shape and name are the same on all ranks. Save waits for the streams
// that use b.
func Save[T spmd.Elem](c spmd.Comm, name string, shape []int, b spmd.Buffer[T], off int, replace bool) error {
	head, err := header[T](shape)
	total, _ := elem.Product(shape...)
	return save(c, whole{"arrayfile.Save", name, head, total, replace}, b, off, err)
}

// SaveRaw is Save without a header: the file has total elements and nothing else.
func SaveRaw[T spmd.Elem](c spmd.Comm, name string, total int, b spmd.Buffer[T], off int, replace bool) error {
	return save(c, whole{"arrayfile.SaveRaw", name, nil, total, replace}, b, off, nil)
}

// Load reads the elements of a .npy file from number off on into b, as many as b has. The file's
// type is T.
//
// Collective over c, blocking. Ranks may read the same elements.
func Load[T spmd.Elem](c spmd.Comm, name string, b spmd.Buffer[T], off int) error {
	return load(c, "arrayfile.Load", name, b, off, func() (Info, error) {
		info, err := Stat(name)
		if want, ok := descr[T](); err == nil && (!ok || info.Type != want) {
			err = fmt.Errorf("%s has elements of type %s, not %T", name, info.Type, *new(T))
		}
		return info, err
	})
}

// LoadRaw is Load of a file without a header, which has total elements.
func LoadRaw[T spmd.Elem](c spmd.Comm, name string, total int, b spmd.Buffer[T], off int) error {
	return load(c, "arrayfile.LoadRaw", name, b, off, func() (Info, error) {
		i, err := os.Stat(name)
		size, ok := elem.Product(total, int(unsafe.Sizeof(*new(T))))
		if err == nil && (!ok || i.Size() != int64(size)) {
			err = fmt.Errorf("%s has %d bytes, but %d elements of %T have %d", name, i.Size(), total, *new(T), size)
		}
		return Info{Shape: []int{total}}, err
	})
}

// agree returns on all ranks the error of the first rank that has one.
func agree(c spmd.Comm, op string, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	all, failed := hostdata.AllGather(c, text)
	if failed != nil {
		return failed
	}
	for r, what := range all {
		switch {
		case what == "":
		case r == c.Rank():
			return fmt.Errorf("%s: %s: rank %d: %w", ccall.At(), op, r, err)
		default:
			return fmt.Errorf("%s: %s: rank %d: %s", ccall.At(), op, r, what)
		}
	}
	return nil
}

// begin says that c's rank works on files, until leave.
func begin(c spmd.Comm, op string) (work *own.Files, leave func(), err error) {
	w, err := library.WorldOf(c, op)
	if err != nil {
		return nil, nil, err
	}
	work = own.FilesOf(w)
	return work, work.Enter(limit), nil
}

func load[T spmd.Elem](c spmd.Comm, op, name string, b spmd.Buffer[T], off int, stat func() (Info, error)) error {
	work, leave, err := begin(c, op)
	if err != nil {
		return err
	}
	defer leave()
	return agree(c, op, func() error {
		info, err := stat()
		if total, _ := elem.Product(info.Shape...); err == nil && (off < 0 || off > total-b.Len()) {
			err = fmt.Errorf("%s has %d elements: it has no elements %d to %d", name, total, off, off+b.Len())
		}
		if err != nil {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return inPieces(b, func(lo int, h []T) error {
			err := work.Do("read of "+name, func() error {
				_, err := f.ReadAt(bytesOf(h), int64(info.data)+int64(off+lo)*int64(unsafe.Sizeof(h[0])))
				return err
			})
			if err == io.EOF {
				err = fmt.Errorf("%s ends before its last element", name)
			}
			if err != nil {
				return err
			}
			return b.Slice(lo, lo+len(h)).CopyFrom(h)
		})
	}())
}

// whole is a file to be saved, which is the same on all ranks.
type whole struct {
	op, name string
	head     []byte
	total    int // elements
	replace  bool
}

// save saves a file. wrong is why this rank cannot save it, or nil.
func save[T spmd.Elem](c spmd.Comm, f whole, b spmd.Buffer[T], off int, wrong error) error {
	work, leave, err := begin(c, f.op)
	if err != nil {
		return err
	}
	defer leave()
	if err := agree(c, f.op, errors.Join(wrong, covered(c, off, b.Len(), f.total))); err != nil {
		return err
	}
	var out *runfiles.File
	part := ""
	if c.Rank() == 0 {
		err = work.Do("open of "+f.name, func() (err error) {
			if !runfiles.IsFile(f.name) {
				return fmt.Errorf("%s is no file: ranks write their parts of one", f.name)
			}
			if out, err = runfiles.Create(f.name, f.replace); err == nil {
				part = out.Name()
				_, err = out.WriteAt(f.head, 0)
			}
			return err
		})
	}
	err = agree(c, f.op, err)
	if err == nil {
		part, err = hostdata.Broadcast(c, part, 0)
	}
	if err == nil {
		err = agree(c, f.op, write(work, part, len(f.head), b, off))
	}
	if out == nil {
		return errors.Join(err, agreeAtEnd(c, f.op, err, nil))
	}
	if err != nil {
		return errors.Join(err, out.Drop())
	}
	return agreeAtEnd(c, f.op, nil, work.Do("rename to "+f.name, out.Commit))
}

// agreeAtEnd tells all ranks whether the file has its name. A rank that failed before it does not
// ask.
func agreeAtEnd(c spmd.Comm, op string, before, err error) error {
	if before != nil {
		return nil
	}
	return agree(c, op, err)
}

// write writes this rank's part and waits until the disk has it.
func write[T spmd.Elem](work *own.Files, part string, head int, b spmd.Buffer[T], off int) error {
	f, err := os.OpenFile(part, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = inPieces(b, func(lo int, h []T) error {
		if err := b.Slice(lo, lo+len(h)).CopyTo(h); err != nil {
			return err
		}
		return work.Do("write of "+part, func() error {
			_, err := f.WriteAt(bytesOf(h), int64(head)+int64(off+lo)*int64(unsafe.Sizeof(h[0])))
			return err
		})
	})
	if err == nil {
		err = work.Do("sync of "+part, f.Sync)
	}
	return errors.Join(err, f.Close())
}

// covered says why the parts of all ranks do not have each element of the array once.
func covered(c spmd.Comm, off, n, total int) error {
	offs, err := hostdata.AllGather(c, off)
	if err != nil {
		return err
	}
	counts, err := hostdata.AllGather(c, n)
	if err != nil {
		return err
	}
	sum := 0
	for _, k := range counts {
		sum += k
	}
	if sum != total || off < 0 || off > total-n {
		return fmt.Errorf("elements %d to %d of an array of %d, of which all ranks have %d", off, off+n, total, sum)
	}
	for r := range offs {
		if r != c.Rank() && n > 0 && counts[r] > 0 && off < offs[r]+counts[r] && offs[r] < off+n {
			return fmt.Errorf("elements %d to %d are also of rank %d", off, off+n, r)
		}
	}
	return nil
}

// inPieces calls fn for pieces of a buffer, with host memory for each.
func inPieces[T spmd.Elem](b spmd.Buffer[T], fn func(lo int, h []T) error) error {
	const most = 16 << 20 // bytes
	h := make([]T, min(b.Len(), most/int(unsafe.Sizeof(*new(T)))))
	for lo := 0; lo < b.Len(); lo += len(h) {
		if err := fn(lo, h[:min(len(h), b.Len()-lo)]); err != nil {
			return err
		}
	}
	return nil
}

func bytesOf[T spmd.Elem](h []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(h))), len(h)*int(unsafe.Sizeof(*new(T))))
}
