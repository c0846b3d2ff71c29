// Package runfiles writes the files that a program is asked for, such as a trace or a picture,
// reads those that it is given, and finds what a run has left: its log and its checkpoints. One
// rule holds for all that it writes.
//
//   - "-", /dev/stdout and /dev/stderr are the open streams; devices and pipes are written to
//   - links are followed
//   - a folder is refused
//   - an existing file is replaced only on request, and once the new one is complete; lines are
//     appended
package runfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Partial ends the name of a file until it is complete.
const Partial = ".partial"

// File is a file that is being written. Exactly one of Commit and Drop ends it.
type File struct {
	*os.File
	to      string // the name that it gets; "" for no file of its own
	replace bool
}

// What Create does with a file that exists.
const Keep, Replace = false, true

// Create opens the place that a name stands for. For an existing file the error is fs.ErrExist,
// unless replace is true. Nothing changes before Commit.
func Create(name string, replace bool) (*File, error) {
	if f := standard(name); f != nil {
		return &File{File: f}, nil
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return Append(name)
	case err == nil && !replace:
		return nil, there(name)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	to, err := follow(name)
	if err != nil {
		return nil, err
	}
	part := to + Partial
	if err := removeStale(part); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // not every file system has locks
	if info != nil {
		if err := f.Chmod(info.Mode().Perm()); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(part))
		}
	}
	return &File{f, to, replace}, nil
}

// Check refuses what Create would refuse, before there is anything to write. It opens no device and
// no pipe, and leaves nothing.
func Check(name string, replace bool) error {
	if !IsFile(name) {
		return nil
	}
	f, err := Create(name, replace)
	if err != nil {
		return err
	}
	return f.Drop()
}

// IsFile reports whether a name stands for a file or a folder, which may not exist yet. It is false
// for a device, a pipe, or an open stream.
func IsFile(name string) bool {
	info, err := os.Stat(name)
	return standard(name) == nil && (err != nil || info.Mode().IsRegular() || info.IsDir())
}

// Append opens the place that a name stands for, to add lines. It ends a last line that a killed
// program has left unfinished.
func Append(name string) (*File, error) {
	if f := standard(name); f != nil {
		return &File{File: f}, nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a folder", name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	if err := endLine(f, name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{File: f}, nil
}

func endLine(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	r, err := os.Open(name)
	if err != nil { // it may be written only
		return nil
	}
	defer r.Close()
	last := make([]byte, 1)
	if _, err := r.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.Write([]byte{'\n'})
	return err
}

// standard returns the open stream that a name stands for. If it were opened again, a socket would
// fail, and a file would be written from its beginning.
func standard(name string) *os.File {
	switch name {
	case "-", "/dev/stdout":
		return os.Stdout
	case "/dev/stderr":
		return os.Stderr
	}
	return nil
}

// there is a file that must not be replaced.
type there string

func (name there) Error() string { return string(name) + " is there already" }

func (there) Is(err error) bool { return err == fs.ErrExist }

// About adds to an error of Create the flag that has named the file, and how to replace one.
func About(flag string, err error, overwrite string) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w: give another name, or %s to replace it", flag, err, overwrite)
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// follow returns the end of a link, which may not exist yet.
func follow(name string) (string, error) {
	const most = 40 // as Linux has it
	for range most {
		to, err := os.Readlink(name)
		if err != nil {
			return name, nil // no link
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(name) + "/" + to // not shortened: a folder on the way may be a link
		}
		name = to
	}
	return "", &os.PathError{Op: "open", Path: name, Err: unix.ELOOP}
}

// removeStale removes the rest of a killed program. It returns an error if a program
// still writes it.
func removeStale(part string) error {
	info, err := os.Lstat(part)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file: remove it", part)
	}
	f, err := os.OpenFile(part, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK {
		return fmt.Errorf("%s is being written by another program", part)
	}
	return os.Remove(part)
}

// Commit gives the file its name. If that fails, the file keeps the name that it has, and the
// error has both.
func (f *File) Commit() error {
	if f.to == "" {
		return f.end()
	}
	part := f.Name()
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	if err := f.rename(part); err != nil {
		return fmt.Errorf("%w: what was written is in %s", err, part)
	}
	return syncFolder(filepath.Dir(f.to))
}

// syncFolder makes the names in a folder durable, if its file system can.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

func (f *File) rename(part string) error {
	if f.replace {
		return os.Rename(part, f.to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, f.to, unix.RENAME_NOREPLACE)
	switch {
	case err == unix.EEXIST:
		return there(f.to)
	case err == unix.EINVAL || err == unix.ENOSYS: // this file system has no such call
		if _, err := os.Lstat(f.to); err == nil {
			return there(f.to)
		}
		return os.Rename(part, f.to)
	}
	return err
}

// Drop ends the file, and leaves nothing of it.
func (f *File) Drop() error {
	if f.to == "" {
		return f.end()
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// end closes streams that are no file of its own, but not those that others write to.
func (f *File) end() error {
	if f.File == os.Stdout || f.File == os.Stderr {
		return nil
	}
	return f.Close()
}
