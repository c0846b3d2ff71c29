package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// inputError marks an error that is about what the user gave, not about the
// program or the machine.
type inputError struct{ error }

// asInput marks an error so.
func asInput(err error) error { return inputError{err} }

// badInput is fmt.Errorf for such errors.
func badInput(format string, args ...any) error { return asInput(fmt.Errorf(format, args...)) }

// origin is how a file came to be part of the data; it decides what is skipped.
type origin uint8

const (
	named    origin = iota // given by name or glob: taken as it is
	inFolder               // found in a folder: text only
	goTree                 // found in a Go source tree: text that people wrote
)

// input is one file or folder to read.
type input struct {
	Path   string
	Folder bool
	From   origin
}

// resolveData returns the inputs that the --data patterns name, or the source
// tree of the Go toolchain when there are none. It looks at names and sizes only.
func resolveData(patterns []string) ([]input, error) {
	if len(patterns) == 0 {
		root := goSource()
		if root == "" {
			return nil, badInput("no --data given and no Go source tree found to use instead " +
				"(looked at GOROOT, go env GOROOT, /usr/local/go, /usr/lib/go*): give --data FILE, FOLDER or GLOB")
		}
		return []input{{root, true, goTree}}, nil
	}
	var inputs []input
	for _, p := range patterns {
		paths := []string{p} // a name that exists is no pattern, whatever is in it
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(p, `*?[`) {
			if paths, err = filepath.Glob(p); err != nil {
				return nil, badInput("--data %s: %v", p, err)
			}
			if len(paths) == 0 {
				return nil, badInput("--data %s: no file matches", p)
			}
		}
		for _, path := range paths {
			in, err := resolvePath(path)
			if err != nil {
				return nil, err
			}
			inputs = append(inputs, in)
		}
	}
	return inputs, nil
}

// resolvePath refuses what does not exist, is empty or has no end, such as a pipe.
func resolvePath(path string) (input, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return input{}, badInput("--data %s: no such file or folder", path)
	case err != nil:
		return input{}, badInput("--data %s: %v", path, errors.Unwrap(err))
	case st.Mode().IsRegular() && ofKernel(path, st, map[uint64]bool{}):
		return input{}, badInput("--data %s: the kernel makes this file as it is read: copy it first", path)
	case st.Mode().IsRegular() && st.Size() == 0:
		return input{}, badInput("--data %s: the file is empty", path)
	case !st.Mode().IsRegular() && !st.IsDir():
		return input{}, badInput("--data %s: neither a regular file nor a folder", path)
	}
	if path, err = filepath.EvalSymlinks(path); err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return input{}, badInput("--data %s: %v", path, err)
	}
	if !st.IsDir() {
		return input{path, false, named}, nil
	}
	found := false
	err = walk(input{path, true, inFolder}, func(source) error {
		found = true
		return fs.SkipAll
	}, func(string) {})
	if err != nil {
		return input{}, badInput("--data %s: %v", path, err)
	}
	if !found {
		return input{}, badInput("--data %s: the folder holds no files that are not empty", path)
	}
	return input{path, true, inFolder}, nil
}

// goPlaces is where the Go toolchain usually is, when nothing says so.
var goPlaces = []string{"/usr/local/go", "/usr/lib/go", "/usr/lib/go-*", "/usr/lib/golang", "/usr/share/go-*"}

// goSource returns the folder of the Go toolchain's source on this machine, or "".
func goSource() string {
	roots := []string{os.Getenv("GOROOT")}
	if tool, err := exec.LookPath("go"); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, tool, "env", "GOROOT").Output(); err == nil {
			roots = append(roots, strings.TrimSpace(string(out)))
		}
	}
	for _, pattern := range goPlaces {
		if paths, err := filepath.Glob(pattern); err == nil {
			slices.Reverse(paths) // the newest of several versions first
			roots = append(roots, paths...)
		}
	}
	for _, root := range roots {
		src := filepath.Join(root, "src")
		if _, err := os.Stat(filepath.Join(src, "fmt", "print.go")); root == "" || err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(src); err == nil { // Debian's is a link
			return real
		}
	}
	return ""
}

// source is one file of the data as it was when it was listed.
type source struct {
	Path  string
	Size  int64
	Mtime int64 // ns
	From  origin
}

// skips counts what was left out, for the log.
type skips struct{ Empty, Binary, Generated, Duplicate, Unreadable, Kernel int }

func (s skips) String() string {
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{s.Binary, "binary"}, {s.Generated, "generated"}, {s.Duplicate, "duplicate"}, {s.Empty, "empty"}, {s.Unreadable, "unreadable"}, {s.Kernel, "of the kernel"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// Data beyond these is refused before it is read: a sparse file may claim any size,
// and every rank of a node holds the list of the files and of their pieces.
const (
	maxDataFiles = 1 << 24
	maxDataBytes = 1 << 44
)

// listing is a list of files within the limits.
type listing struct {
	files []source
	bytes int64
}

func (l *listing) add(s source) error {
	if s.Size < 0 || s.Size > maxDataBytes-l.bytes {
		return fmt.Errorf("%s of %d bytes after %d bytes of other files: more than %d bytes of data", s.Path, s.Size, l.bytes, int64(maxDataBytes))
	}
	if len(l.files) == maxDataFiles {
		return fmt.Errorf("%s: more than %d files", s.Path, maxDataFiles)
	}
	l.files = append(l.files, s)
	l.bytes += s.Size
	return nil
}

// listFiles returns the files of the inputs in a fixed order.
func listFiles(inputs []input) ([]source, skips, error) {
	var list listing
	var skipped skips
	for _, in := range inputs {
		if !in.Folder {
			st, err := os.Stat(in.Path)
			if err != nil {
				return nil, skipped, badInput("--data %s: %v", in.Path, errors.Unwrap(err))
			}
			if err := list.add(source{in.Path, st.Size(), st.ModTime().UnixNano(), in.From}); err != nil {
				return nil, skipped, badInput("--data: %v", err)
			}
			continue
		}
		err := walk(in, list.add, func(why string) {
			switch why {
			case "empty":
				skipped.Empty++
			case "of the kernel":
				skipped.Kernel++
			default:
				skipped.Unreadable++
			}
		})
		if err != nil {
			return nil, skipped, badInput("--data %s: %v", in.Path, err)
		}
	}
	return list.files, skipped, nil
}

// kernelTypes are file systems whose files are made as they are read: what size they
// have says nothing. Source: statfs(2).
var kernelTypes = []int64{
	unix.SYSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.CGROUP_SUPER_MAGIC,
	unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.SELINUX_MAGIC, unix.DEVPTS_SUPER_MAGIC,
}

// ofKernel says whether a file is the kernel's and no data. It asks once for each file
// system, which seen remembers.
func ofKernel(path string, st fs.FileInfo, seen map[uint64]bool) bool {
	dev := st.Sys().(*syscall.Stat_t).Dev
	is, ok := seen[dev]
	if !ok {
		var fsys unix.Statfs_t
		is = unix.Statfs(path, &fsys) == nil && slices.Contains(kernelTypes, int64(fsys.Type))
		seen[dev] = is
	}
	return is
}

// walk calls take for every file of a folder that may be text, in the order of
// their names. Hidden files and folders are left out; links to files are followed,
// links to folders are not, for they may lead in a circle. Files of the kernel's, as in
// /sys, are left out.
func walk(in input, take func(source) error, skip func(why string)) error {
	seen := map[uint64]bool{}
	return filepath.WalkDir(in.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == in.Path {
				return errors.Unwrap(err)
			}
			skip("unreadable")
			return nil
		}
		if path != in.Path && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			if in.From == goTree && d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if in.From == goTree && filepath.Ext(path) != ".go" {
			return nil
		}
		st, err := os.Stat(path)
		switch {
		case err != nil:
			skip("unreadable")
			return nil
		case !st.Mode().IsRegular():
			return nil
		case ofKernel(path, st, seen):
			skip("of the kernel")
			return nil
		case st.Size() == 0:
			skip("empty")
			return nil
		}
		return take(source{path, st.Size(), st.ModTime().UnixNano(), in.From})
	})
}

// pieceBytes is what one reading takes of a file: large files are hashed and
// tokenised in pieces, by several goroutines and ranks.
const pieceBytes = 1 << 20

// piece is one part of a file: bytes [Index*pieceBytes, (Index+1)*pieceBytes), the
// ends moved to where the tokenizer may cut.
type piece struct {
	file, index int
}

// pieces cuts files, taken in the order given, and says how many bytes come before
// each piece; the last entry of before is the total.
func pieces(files []source, order []int) (all []piece, before []int64) {
	var sum int64
	for _, f := range order {
		for i := 0; int64(i)*pieceBytes < files[f].Size; i++ {
			all = append(all, piece{f, i})
			before = append(before, sum)
			sum += min(pieceBytes, files[f].Size-int64(i)*pieceBytes)
		}
	}
	return all, append(before, sum)
}

// share returns the pieces of rank r: contiguous, about the same bytes for each rank.
// A piece belongs to the rank in whose part of the bytes it begins.
func share(before []int64, r, size int) (lo, hi int) {
	n := len(before) - 1
	start, total := before[0], before[n]-before[0]
	first := func(r int) int {
		bound := start + total/int64(size)*int64(r) + total%int64(size)*int64(r)/int64(size)
		i, _ := slices.BinarySearch(before[:n], bound)
		return i
	}
	lo, hi = first(r), n
	if r+1 < size {
		hi = first(r + 1)
	}
	return lo, hi
}

// errChanged says that a file is not what it was when it was listed.
var errChanged = errors.New("the file changed while it was read")

// openRegular opens a file to read it. A name that has become a pipe or a folder is
// an error: to open a pipe would wait for its writer.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// readPiece returns bytes [from, to) of a file, after a check that the file is the
// one that was listed.
func readPiece(s source, from, to int64) ([]byte, error) {
	f, st, err := openRegular(s.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() != s.Size || st.ModTime().UnixNano() != s.Mtime {
		return nil, fmt.Errorf("%s: %w", s.Path, errChanged)
	}
	b := make([]byte, to-from)
	if _, err := f.ReadAt(b, from); err != nil {
		if err == io.EOF {
			err = errChanged
		}
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return b, nil
}

// What a look at the first piece of a file found.
const (
	textFile byte = iota
	binaryFile
	generatedFile
	unreadableFile
)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// classify looks at the beginning of a file: a NUL byte in the first 8 KiB makes it
// binary, the Go tools' mark makes it generated.
func classify(b []byte, from origin) byte {
	head := b[:min(len(b), 8<<10)]
	switch {
	case from == named:
		return textFile
	case bytes.IndexByte(head, 0) >= 0:
		return binaryFile
	case from == goTree && generated.Match(head):
		return generatedFile
	}
	return textFile
}

// pieceSum is the SHA-256 of a piece and, for the first of a file, its class.
type pieceSum [sha256.Size + 1]byte

// hashPiece reads and sums one piece. A file of a folder that cannot be read is
// skipped, not an error: somebody else's file must not stop the run.
func hashPiece(s source, index int) (sum pieceSum, err error) {
	from := int64(index) * pieceBytes
	b, err := readPiece(s, from, min(from+pieceBytes, s.Size))
	if err != nil {
		if s.From != named && (errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)) {
			sum[sha256.Size] = unreadableFile
			return sum, nil
		}
		return sum, err
	}
	h := sha256.Sum256(b)
	copy(sum[:], h[:])
	if index == 0 {
		sum[sha256.Size] = classify(b, s.From)
	}
	return sum, nil
}

// document is a file that is part of the data, known by its contents.
type document struct {
	file int
	hash [sha256.Size]byte // SHA-256 of the sums of its pieces
}

// documents returns the files that are text, each contents once, in the order of
// their hashes. That order depends on nothing but contents, not on names and
// places, and it mixes the files, so that the end of the data, which is held back
// for validation, is a fair sample of it.
func documents(files []source, all []piece, sums []pieceSum, skipped *skips) []document {
	var docs []document
	for lo := 0; lo < len(all); {
		hi := lo + 1
		for hi < len(all) && all[hi].file == all[lo].file {
			hi++
		}
		switch sums[lo][sha256.Size] {
		case binaryFile:
			skipped.Binary++
		case generatedFile:
			skipped.Generated++
		case unreadableFile:
			skipped.Unreadable++
		default:
			h := sha256.New()
			for _, s := range sums[lo:hi] {
				h.Write(s[:sha256.Size])
			}
			docs = append(docs, document{all[lo].file, [sha256.Size]byte(h.Sum(nil))})
		}
		lo = hi
	}
	slices.SortFunc(docs, func(a, b document) int {
		return cmp.Or(bytes.Compare(a.hash[:], b.hash[:]), cmp.Compare(a.file, b.file))
	})
	n := len(docs)
	docs = slices.CompactFunc(docs, func(a, b document) bool { return a.hash == b.hash })
	skipped.Duplicate += n - len(docs)
	return docs
}

// contentKey names the token file of documents under a tokenizer.
func contentKey(t tokenizer, docs []document) (key [sha256.Size]byte) {
	h := sha256.New()
	fmt.Fprintf(h, "lockstep tokens %d\n%s\n%d\n", tokenFileVersion, t.name(), len(docs))
	for _, d := range docs {
		h.Write(d.hash[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// encodePiece returns the tokens of one piece, with the separator after the last
// piece of a file.
func encodePiece(t tokenizer, s source, index int) ([]byte, error) {
	nominal := func(i int) int64 { return min(int64(i)*pieceBytes, s.Size) }
	look := func(i int) int64 { return min(nominal(i)+int64(t.lookahead()), s.Size) }
	start := max(0, nominal(index)-2) // where b begins in the file
	b, err := readPiece(s, start, look(index+1))
	if err != nil {
		return nil, err
	}
	// Both neighbours of a cut see the same bytes round it, so they agree on it.
	at := func(i int) int64 {
		n := nominal(i)
		if i == 0 || n == s.Size {
			return n
		}
		return n - 2 + int64(t.cut(b[n-2-start:look(i)-start]))
	}
	from, to := at(index), at(index+1)
	out, err := t.encode(make([]byte, 0, len(b)), b[from-start:to-start])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	if to == s.Size {
		sep := t.separator()
		out = append(out, byte(sep))
		if t.width() == 2 {
			out = append(out, byte(sep>>8))
		}
	}
	return out, nil
}

// parallel calls fn(0) ... fn(n-1) from some goroutines and returns the error of
// the lowest index that failed. After an error no further call begins.
func parallel(threads, n int, fn func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Bool
	var mu sync.Mutex
	var wg sync.WaitGroup
	at, first := n, error(nil)
	for range min(max(threads, 1), n) {
		wg.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(i); err != nil {
					mu.Lock()
					if i < at {
						at, first = i, err
					}
					mu.Unlock()
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return first
}
