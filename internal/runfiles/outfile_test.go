package runfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

// write writes a text as a program does, and returns the error.
func write(name, text string, replace bool) error {
	f, err := Create(name, replace)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		return errors.Join(err, f.Drop())
	}
	return f.Commit()
}

func holds(t *testing.T, name, want string) {
	t.Helper()
	if b, err := os.ReadFile(name); err != nil || string(b) != want {
		t.Errorf("%s holds %q, %v; want %q", name, b, err, want)
	}
}

var must = testkit.Must

// An existing file is replaced only on request, and only by a complete one.
func TestReplace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	must(t, write(name, "first", false))
	if err := write(name, "second", false); !errors.Is(err, fs.ErrExist) ||
		!strings.Contains(err.Error(), name+" is there already") {
		t.Errorf("%v", err)
	}
	holds(t, name, "first")
	must(t, os.Chmod(name, 0o640))
	f, err := Create(name, true)
	must(t, err)
	_, err = f.WriteString("sec")
	must(t, err)
	holds(t, name, "first")
	must(t, f.Drop())
	holds(t, name, "first")
	must(t, write(name, "second", true))
	holds(t, name, "second")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(name + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A file that appears meanwhile stays, and so does what was written.
func TestComesMeanwhile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	f, err := Create(name, false)
	must(t, err)
	_, err = f.WriteString("ours")
	must(t, err)
	must(t, os.WriteFile(name, []byte("theirs"), 0o666))
	if err := f.Commit(); !errors.Is(err, fs.ErrExist) ||
		!strings.Contains(err.Error(), "what was written is in "+name+Partial) {
		t.Errorf("%v", err)
	}
	holds(t, name, "theirs")
	holds(t, name+Partial, "ours")
	must(t, write(name, "again", true)) // what an ended program has left is in nobody's way
	holds(t, name, "again")
}

// Lines are added behind the existing ones. An unfinished line stays a line.
func TestAppend(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	for _, text := range []string{"one\n", "two\nhal", "three\n"} {
		f, err := Append(name)
		must(t, err)
		_, err = f.WriteString(text)
		must(t, err)
		must(t, f.Commit())
	}
	holds(t, name, "one\ntwo\nhal\nthree\n")
	if _, err := Append(filepath.Dir(name)); err == nil || err.Error() != filepath.Dir(name)+" is a folder" {
		t.Error(err)
	}
}

// Two programs do not write one file.
func TestTwoWriters(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	f, err := Create(name, false)
	must(t, err)
	if err := write(name, "second", true); err == nil ||
		!strings.Contains(err.Error(), "is being written by another program") {
		t.Errorf("%v", err)
	}
	_, err = f.WriteString("first")
	must(t, err)
	must(t, f.Commit())
	holds(t, name, "first")
}

// Links are followed, to a file and to none. They stay links.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(at("far"), 0o777))
	must(t, os.WriteFile(at("far/old"), []byte("old"), 0o666))
	must(t, os.Symlink("far/old", at("a")))
	must(t, os.Symlink("b2", at("b")))
	must(t, os.Symlink(at("far/new"), at("b2")))
	must(t, os.Symlink("round", at("round")))
	if err := write(at("a"), "x", false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
	must(t, write(at("a"), "x", true))
	must(t, write(at("b"), "y", false))
	holds(t, at("far/old"), "x")
	holds(t, at("far/new"), "y")
	for _, name := range []string{"a", "b", "b2"} {
		if info, err := os.Lstat(at(name)); err != nil || info.Mode().Type() != fs.ModeSymlink {
			t.Errorf("%s is no link any more: %v, %v", name, info.Mode(), err)
		}
	}
	if err := write(at("round"), "z", true); !errors.Is(err, unix.ELOOP) {
		t.Errorf("%v", err)
	}
}

// Devices and pipes are written to, and stay what they are. Folders are refused.
func TestOthers(t *testing.T) {
	dir := t.TempDir()
	if err := write("/dev/full", "x", false); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	must(t, write("/dev/null", "x", false))
	for _, name := range []string{"/dev/full", "/dev/null"} {
		if info, err := os.Stat(name); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
			t.Fatalf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	must(t, unix.Mkfifo(pipe, 0o666))
	near, err := os.OpenFile(pipe, os.O_RDWR, 0)
	must(t, err)
	defer near.Close()
	must(t, write(pipe, "through", false))
	b := make([]byte, 10)
	if n, err := near.Read(b); err != nil || string(b[:n]) != "through" {
		t.Errorf("%q, %v", b[:n], err)
	}
	for _, replace := range []bool{false, true} {
		if err := write(dir, "x", replace); err == nil || err.Error() != dir+" is a folder" {
			t.Errorf("%v", err)
		}
		if err := write(filepath.Join(dir, "no", "such"), "x", replace); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// An open file is neither opened again nor closed.
func TestStandard(t *testing.T) {
	for _, name := range []string{"-", "/dev/stdout", "/dev/stderr"} {
		f, err := Create(name, false)
		must(t, err)
		if f.File != os.Stdout && f.File != os.Stderr {
			t.Errorf("%s is opened again", name)
		}
		must(t, f.Commit())
		f, err = Create(name, true)
		must(t, err)
		must(t, f.Drop())
		if _, err := f.Stat(); err != nil {
			t.Errorf("%s is closed: %v", name, err)
		}
	}
}
