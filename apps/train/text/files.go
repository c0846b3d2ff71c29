package text

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Origin is how a file came to be part of the data. It decides what is skipped.
type Origin uint8

const (
	Named    Origin = iota // given by name or glob: taken as it is
	InFolder               // found in a folder: text only
	GoTree                 // found in a Go source tree: text that people wrote
)

// Place is one file or folder to read.
type Place struct {
	Path   string
	Folder bool
	From   Origin
}

// Resolve returns the inputs of the --data patterns, or the source tree of the Go toolchain if
// there are none. It looks only at names and sizes.
func Resolve(patterns []string) ([]Place, error) {
	if len(patterns) == 0 {
		root := goSource()
		if root == "" {
			return nil, BadInput("no --data given and no Go source tree found to use instead " +
				"(looked at GOROOT, go env GOROOT, /usr/local/go, /usr/lib/go*): give --data FILE, FOLDER or GLOB")
		}
		return []Place{{root, true, GoTree}}, nil
	}
	var inputs []Place
	for _, p := range patterns {
		paths := []string{p} // a name that exists is no pattern, whatever is in it
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(p, `*?[`) {
			if paths, err = filepath.Glob(p); err != nil {
				return nil, BadInput("--data %s: %v", p, err)
			}
			if len(paths) == 0 {
				return nil, BadInput("--data %s: no file matches", p)
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

// resolvePath refuses a path that does not exist, is empty, or has no end, such as a pipe.
func resolvePath(path string) (Place, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Place{}, BadInput("--data %s: no such file or folder", path)
	case err != nil:
		return Place{}, BadInput("--data %s: %v", path, errors.Unwrap(err))
	case st.Mode().IsRegular() && ofKernel(path, st, map[uint64]bool{}):
		return Place{}, BadInput("--data %s: the kernel makes this file as it is read: copy it first", path)
	case st.Mode().IsRegular() && st.Size() == 0:
		return Place{}, BadInput("--data %s: the file is empty", path)
	case !st.Mode().IsRegular() && !st.IsDir():
		return Place{}, BadInput("--data %s: neither a regular file nor a folder", path)
	}
	if path, err = filepath.EvalSymlinks(path); err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return Place{}, BadInput("--data %s: %v", path, err)
	}
	if !st.IsDir() {
		return Place{path, false, Named}, nil
	}
	found := false
	var skipped Skips
	err = walk(Place{path, true, InFolder}, func(Source) error {
		found = true
		return fs.SkipAll
	}, &skipped)
	if err != nil {
		return Place{}, BadInput("--data %s: %v", path, err)
	}
	if !found {
		return Place{}, BadInput("--data %s: the folder holds no files that can be read (left out: %v)", path, skipped)
	}
	return Place{path, true, InFolder}, nil
}

// goPlaces are the usual places of the Go toolchain.
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

// Source is one file of the data as it was when it was listed.
type Source struct {
	Path  string
	Size  int64
	Mtime int64 // ns
	From  Origin
}

// Skips counts what was left out, for the log.
type Skips struct{ Empty, Binary, Generated, Duplicate, Unreadable, Kernel, Hidden, Links, Special int }

func (s Skips) String() string {
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{s.Binary, "binary"}, {s.Generated, "generated"}, {s.Duplicate, "duplicate"}, {s.Empty, "empty"},
		{s.Unreadable, "unreadable"}, {s.Kernel, "of the kernel"},
		{s.Hidden, "hidden"}, {s.Links, "links to folders"}, {s.Special, "pipes, sockets or devices"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// Data beyond these limits is refused before it is read. A sparse file may claim any size, and
// every rank of a node holds the list of the files and of their pieces.
const (
	maxDataFiles = 1 << 24
	MaxDataBytes = 1 << 44
)

// Listing is a list of files within the limits.
type Listing struct {
	Files []Source
	bytes int64
}

func (l *Listing) Add(s Source) error {
	if s.Size < 0 || s.Size > MaxDataBytes-l.bytes {
		return fmt.Errorf("%s of %d bytes after %d bytes of other files: more than %d bytes of data",
			s.Path, s.Size, l.bytes, int64(MaxDataBytes))
	}
	if len(l.Files) == maxDataFiles {
		return fmt.Errorf("%s: more than %d files", s.Path, maxDataFiles)
	}
	l.Files = append(l.Files, s)
	l.bytes += s.Size
	return nil
}

// List returns the files of the inputs in a fixed order.
func List(inputs []Place) ([]Source, Skips, error) {
	var list Listing
	var skipped Skips
	for _, in := range inputs {
		if !in.Folder {
			st, err := os.Stat(in.Path)
			if err != nil {
				return nil, skipped, BadInput("--data %s: %v", in.Path, errors.Unwrap(err))
			}
			if err := list.Add(Source{in.Path, st.Size(), st.ModTime().UnixNano(), in.From}); err != nil {
				return nil, skipped, BadInput("--data: %v", err)
			}
			continue
		}
		if err := walk(in, list.Add, &skipped); err != nil {
			return nil, skipped, BadInput("--data %s: %v", in.Path, err)
		}
	}
	return list.Files, skipped, nil
}

// kernelTypes are file systems whose files are made when they are read, so that their sizes say
// nothing. Source: statfs(2).
var kernelTypes = []int64{
	unix.SYSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
	unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC,
	unix.SELINUX_MAGIC, unix.DEVPTS_SUPER_MAGIC,
}

// ofKernel reports whether a file belongs to the kernel and is no data. It asks once for each file
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

// walk calls take for every file of a folder that may be text, in the order of their names. It
// counts what it leaves out in skipped, a folder as one.
//
// It leaves out hidden files and folders, and the kernel's files, as in /sys. It follows links to
// files but not to folders, since these may lead in a circle.
func walk(in Place, take func(Source) error, skipped *Skips) error {
	seen := map[uint64]bool{}
	return filepath.WalkDir(in.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == in.Path {
				return errors.Unwrap(err)
			}
			skipped.Unreadable++
			return nil
		}
		if path != in.Path && strings.HasPrefix(d.Name(), ".") {
			skipped.Hidden++
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			if in.From == GoTree && d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if in.From == GoTree && filepath.Ext(path) != ".go" {
			return nil
		}
		st, err := os.Stat(path)
		switch {
		case err != nil:
			skipped.Unreadable++
			return nil
		case st.IsDir():
			skipped.Links++
			return nil
		case !st.Mode().IsRegular():
			skipped.Special++
			return nil
		case ofKernel(path, st, seen):
			skipped.Kernel++
			return nil
		case st.Size() == 0:
			skipped.Empty++
			return nil
		}
		return take(Source{path, st.Size(), st.ModTime().UnixNano(), in.From})
	})
}
