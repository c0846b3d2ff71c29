package text

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

// On a machine without Go's source the error says what to give instead.
func TestNoGoTree(t *testing.T) {
	places := goPlaces
	defer func() { goPlaces = places }()
	goPlaces = []string{filepath.Join(t.TempDir(), "go*")}
	t.Setenv("GOROOT", "")
	t.Setenv("PATH", "")
	_, err := Resolve(nil)
	if !errors.As(err, new(InputError)) || !strings.Contains(err.Error(), "give --data") {
		t.Errorf("error %v, want bad input that asks for --data", err)
	}
}

// Files that are left out of a folder are counted, and named if nothing else is there.
func TestLeftOut(t *testing.T) {
	root := t.TempDir()
	far, dir := filepath.Join(root, "far"), filepath.Join(root, "dir")
	at := func(name string) string { return filepath.Join(dir, name) }
	listener, err := net.Listen("unix", filepath.Join(root, "s"))
	testkit.Must(t, err)
	defer listener.Close()
	err = errors.Join(os.MkdirAll(at(".git/objects"), 0o777), os.WriteFile(at(".git/objects/a"), []byte("x"), 0o666),
		os.Mkdir(far, 0o777), os.WriteFile(filepath.Join(far, "b"), []byte("x"), 0o666),
		os.Symlink("../far", at("linked")), os.Symlink(".", at("round")), os.Symlink("none", at("dangling")),
		os.Symlink("../s", at("socket")), unix.Mkfifo(at("pipe"), 0o666), os.WriteFile(at("empty"), nil, 0o666),
		os.WriteFile(at(".hidden"), []byte("x"), 0o666))
	testkit.Must(t, err)
	const want = "1 empty, 1 unreadable, 2 hidden, 2 links to folders, 2 pipes, sockets or devices"
	if _, err := Resolve([]string{dir}); !errors.As(err, new(InputError)) ||
		!strings.Contains(err.Error(), "the folder holds no files that can be read (left out: "+want+")") {
		t.Errorf("%v", err)
	}
	testkit.Must(t, os.WriteFile(at("text"), []byte("x"), 0o666))
	if files, skipped, err := List([]Place{{dir, true, InFolder}}); err != nil || len(files) != 1 ||
		skipped.String() != want {
		t.Errorf("%v, skipped %v, %v; want %s", files, skipped, err, want)
	}
}
