package arrayfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

// numpy is the output of numpy.save for arange(6, dtype=float32).reshape(2, 3), byte by byte.
var numpy = "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" +
	strings.Repeat(" ", 58) + "\n" +
	"\x00\x00\x00\x00\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40\x00\x00\xa0\x40"

// parts gives the last rank the first elements, and the first of three ranks none.
func parts(n int, w *spmd.World) (off, count int) {
	s := spmd.ShardOf(n, w.Size()-1-w.Rank(), w.Size())
	if w.Size() == 3 {
		s = [...]spmd.Shard{{}, {Off: n / 3, Len: n - n/3}, {Off: 0, Len: n / 3}}[w.Rank()]
	}
	return s.Off, s.Len
}

// inFolder runs fn on ranks that share a folder.
func inFolder(t *testing.T, fn func(t *testing.T, w *spmd.World, dir string)) {
	t.Helper()
	for _, n := range []int{1, 3} {
		dir := t.TempDir()
		spmdtest.RunInProcess(t, []int{n}, func(t *testing.T, w *spmd.World) { fn(t, w, dir) })
	}
}

// A saved file is NumPy's, and a load gives its elements on any rank.
func TestNumPy(t *testing.T) {
	inFolder(t, func(t *testing.T, w *spmd.World, dir string) {
		off, n := parts(6, w)
		b := spmdtest.Alloc[float32](t, w, n)
		for i := range n {
			b.Set(i, float32(off+i))
		}
		name := filepath.Join(dir, "a.npy")
		spmdtest.Must(t, Save(w.Comm(), name, []int{2, 3}, b, off, Refuse))
		text, err := os.ReadFile(name)
		spmdtest.Must(t, err)
		if string(text) != numpy {
			t.Fatalf("the file is %q, want %q", text, numpy)
		}
		whole := spmdtest.Alloc[float32](t, w, 5)
		spmdtest.Must(t, Load(w.Comm(), name, whole, 1))
		for i := range 5 {
			if whole.At(i) != float32(i+1) {
				t.Errorf("element %d is %v", i+1, whole.At(i))
			}
		}
		if err := Save(w.Comm(), name, []int{6}, b, off, Refuse); err == nil ||
			w.Rank() == 0 && !errors.Is(err, fs.ErrExist) {
			t.Errorf("a file that is there: %v", err)
		}
		spmdtest.Must(t, Save(w.Comm(), name, []int{6}, b, off, Replace))
		info, err := Stat(name)
		if err != nil || len(info.Shape) != 1 || info.Shape[0] != 6 || info.Type != "<f4" {
			t.Errorf("%v, %v", info, err)
		}
		if left, _ := filepath.Glob(name + ".*"); len(left) > 0 {
			t.Errorf("%v was left", left)
		}
	})
}

// Raw files have the elements alone, of every type.
func TestRaw(t *testing.T) {
	inFolder(t, func(t *testing.T, w *spmd.World, dir string) {
		const total = 1000
		off, n := parts(total, w)
		b, back := spmdtest.Alloc[complex128](t, w, n), spmdtest.Alloc[complex128](t, w, total)
		for i := range n {
			b.Set(i, complex(float64(off+i), -1))
		}
		name := filepath.Join(dir, "raw")
		spmdtest.Must(t, SaveRaw(w.Comm(), name, total, b, off, Refuse))
		spmdtest.Must(t, LoadRaw(w.Comm(), name, total, back, 0))
		h := make([]complex128, total)
		spmdtest.Must(t, back.CopyTo(h))
		for i, z := range h {
			if z != complex(float64(i), -1) {
				t.Fatalf("element %d is %v", i, z)
			}
		}
		if err := LoadRaw(w.Comm(), name, total/2, back, 0); err == nil ||
			!strings.Contains(err.Error(), "16000 bytes, but 500 elements of complex128 have 8000") {
			t.Errorf("of another length: %v", err)
		}
	})
}

// Bad calls are refused on every rank, and leave no file.
func TestRefused(t *testing.T) {
	inFolder(t, func(t *testing.T, w *spmd.World, dir string) {
		refused := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %q", w.Rank(), err, want)
			}
		}
		c, name := w.Comm(), filepath.Join(dir, "x.npy")
		b := spmdtest.Alloc[float32](t, w, 2)
		half := spmdtest.Alloc[spmd.BF16](t, w, 2)
		refused(Save(c, name, []int{2 * w.Size()}, half, 2*w.Rank(), Refuse), "NumPy has no type like elem.BF16")
		refused(Save(c, name, []int{2*w.Size() + 1}, b, 2*w.Rank(), Refuse), "of which all ranks have")
		if w.Size() > 1 {
			refused(Save(c, name, []int{2 * w.Size()}, b, 0, Refuse), "rank 0: elements 0 to 2 are also of rank 1")
		}
		refused(Save(c, dir, []int{2 * w.Size()}, b, 2*w.Rank(), Refuse), "folder")
		refused(Save(c, "/dev/null", []int{2 * w.Size()}, b, 2*w.Rank(), Refuse), "no file")
		refused(Load(c, name, b, 0), "no such file")
		if left, _ := filepath.Glob(name + "*"); len(left) > 0 {
			t.Errorf("%v was left", left)
		}
		if w.Rank() == 0 {
			spmdtest.Must(t, os.WriteFile(filepath.Join(dir, "ok"), []byte(numpy), 0o666))
		}
		for _, shape := range [][]int{{1 << 32, 1 << 32}, {1 << 62, 1}, {-1, -2 * w.Size()}, make([]int, 33)} {
			refused(Save(c, name, shape, b.Slice(0, 0), 0, Refuse), "an array of the shape [")
		}
		refused(LoadRaw(c, filepath.Join(dir, "ok"), 1<<62+38, b, 0), "bytes, but 4611686018427387942 elements")
		refused(Load(c, filepath.Join(dir, "ok"), b, 5), "has 6 elements: it has no elements 5 to 7")
		refused(Load(c, filepath.Join(dir, "ok"), spmdtest.Alloc[int32](t, w, 2), 0),
			"has elements of type <f4, not int32")
	})
}

// Stat reads what NumPy reads, as NumPy does: a dictionary in Python.
func TestStat(t *testing.T) {
	file := func(version byte, text, data string) string {
		length := []byte{byte(len(text)), byte(len(text) >> 8), byte(len(text) >> 16), 0}
		if version == 1 {
			length = length[:2]
		}
		return "\x93NUMPY" + string(version) + "\x00" + string(length) + text + data
	}
	six := strings.Repeat("abcd", 6)
	plain := "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
	with := func(old, text string) string { return strings.Replace(plain, old, text, 1) }
	name := filepath.Join(t.TempDir(), "a.npy")
	for _, c := range []struct{ file, want string }{
		{file(1, plain, six), "[2 3] <f4"},
		{file(2, plain, six), "[2 3] <f4"},
		{file(3, plain+"\n", six), "[2 3] <f4"},
		{file(2, plain+strings.Repeat(" ", 70_000)+"\n", six), "[2 3] <f4"},
		{file(2, plain+strings.Repeat(" ", 2<<20)+"\n", six), "a.npy: its header of version 2 and 2097212 bytes"},
		{file(4, plain, six), "a.npy: its header of version 4 and 59 bytes is not complete, or not known"},
		{file(1, `{"shape":(2,3),"fortran_order":False,"descr":"<f4"}`, six), "[2 3] <f4"},
		{file(1, with("(2, 3)", "(2L, 3L,)"), six), "[2 3] <f4"},
		{file(1, with("(2, 3), ", "(6,) "), six), "[6] <f4"},
		{file(1, with("False, 'shape': (2, 3)", "True, 'shape': (6,)"), six), "[6] <f4"},
		{file(1, with("False, 'shape': (2, 3)", "True, 'shape': (1, 6)"), six), "[1 6] <f4"},
		{file(1, with("(2, 3)", "()"), six), "[] <f4"},
		{file(1, with("(2, 3)", "(0, 9223372036854775807)"), six), "[0 9223372036854775807] <f4"},
		{file(1, with("False", "True"), six), "a.npy is in the order of columns"},
		{file(1, with("(2, 3)", "(7,)"), six), "a.npy has 24 bytes of elements, but its shape [7] of <f4 needs 28"},
		{file(1, with("(2, 3)", "(-2, 3)"), six), "a.npy: its header is "},
		{file(1, with("(2, 3)", "(6)"), six), "a.npy: its header is "},
		{file(1, with("(2, 3)", "(2 3)"), six), "a.npy: its header is "},
		{file(1, with("(2, 3)", "(2, 'a')"), six), "a.npy: its header is "},
		{file(1, with("(2, 3)", "(,)"), six), "a.npy: its header is "},
		{file(1, with("'shape'", "'form'"), six), "a.npy: its header is "},
		{file(1, with("}", "'x': 1}"), six), "a.npy: its header is "},
		{file(1, with("}", "} 1"), six), "a.npy: its header is "},
		{file(1, with("(2, 3)", "(4294967296, 4294967296)"), six), "a.npy: its shape is [4294967296 4294967296]"},
		{file(1, with("(2, 3)", "(99999999999999999999,)"), six), "a.npy: its header is "},
		{file(1, with("<f4", "<U10"), strings.Repeat(six, 10)), "[2 3] <U10"},
		{file(1, with("<f4", "<U10"), six), "a.npy has 24 bytes of elements, but its shape [2 3] of <U10 needs 240"},
		{file(1, with("<f4", "<M8[ns]"), six+six), "[2 3] <M8[ns]"},
		{file(1, with("<f4", "<m8"), six), "a.npy has 24 bytes of elements, but its shape [2 3] of <m8 needs 48"},
		{file(1, with("<f4", "|b1"), six), "[2 3] |b1"},
		{file(1, with("<f4", "|O"), six), "a.npy has elements of type |O, which are no numbers or texts"},
		{file(1, with("'<f4'", "[('x', '<f4')]"), six), "a.npy has elements of type [[x <f4]], which are no numbers"},
		{"hello, world", "a.npy is no .npy file"},
	} {
		spmdtest.Must(t, os.WriteFile(name, []byte(c.file), 0o666))
		info, err := Stat(name)
		got := fmt.Sprint(info.Shape, " ", info.Type)
		if err != nil {
			got = strings.TrimPrefix(err.Error(), filepath.Dir(name)+"/")
		}
		if err == nil != strings.HasPrefix(c.want, "[") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%.90q: %s, want %s", c.file, got, c.want)
		}
	}
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) { // behind a long header
		spmdtest.Must(t, os.WriteFile(name, []byte(file(3, plain+strings.Repeat(" ", 70_000), numpy[128:])), 0o666))
		b := spmdtest.Alloc[float32](t, w, 6)
		spmdtest.Must(t, Load(w.Comm(), name, b, 0))
		if b.At(0) != 0 || b.At(5) != 5 {
			t.Errorf("%v to %v, want 0 to 5", b.At(0), b.At(5))
		}
	})
}
