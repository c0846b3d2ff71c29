package dl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// double is the source of a test double: a shared library of two integers and nothing else. Data
// symbols are found as functions are, and a test can read them without C.
const double = `
int one = 1;
int two = 2;
`

// build compiles the test double into dir and returns its path.
func build(t *testing.T, dir, name string) string {
	t.Helper()
	src, lib := filepath.Join(dir, "double.c"), filepath.Join(dir, name)
	if err := os.WriteFile(src, []byte(double), 0o644); err != nil {
		t.Fatal(err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", lib, src).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	return lib
}

func TestOpenFillsEverySlot(t *testing.T) {
	lib := build(t, t.TempDir(), "libdouble.so")
	var one, two unsafe.Pointer
	path, err := Open([]Sym{{Name: "one", Slot: &one}, {Name: "two", Slot: &two}}, lib)
	if err != nil {
		t.Fatal(err)
	}
	if path != lib {
		t.Errorf("path is %q, want %q", path, lib)
	}
	if got := *(*int32)(one); got != 1 {
		t.Errorf("one holds %d", got)
	}
	if got := *(*int32)(two); got != 2 {
		t.Errorf("two holds %d", got)
	}
}

func TestOptionalSymbolStaysNil(t *testing.T) {
	lib := build(t, t.TempDir(), "libdouble.so")
	stale := 0
	var one, three unsafe.Pointer = nil, unsafe.Pointer(&stale)
	_, err := Open([]Sym{{Name: "one", Slot: &one}, {Name: "three", Slot: &three, Optional: true}}, lib)
	if err != nil {
		t.Fatal(err)
	}
	if one == nil || three != nil {
		t.Errorf("one = %v, three = %v: want an address and nil", one, three)
	}
}

func TestRequiredSymbolMissing(t *testing.T) {
	lib := build(t, t.TempDir(), "libdouble.so")
	var one, three, four unsafe.Pointer
	_, err := Open([]Sym{
		{Name: "one", Slot: &one}, {Name: "three", Slot: &three}, {Name: "four", Slot: &four},
	}, lib)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{lib, "three", "four"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
	if one != nil {
		t.Error("a slot is filled after an error")
	}
}

// A library in use stays in use: a later failure to open does not take its entry points away.
func TestFailureLeavesTheTable(t *testing.T) {
	lib := build(t, t.TempDir(), "libdouble.so")
	var one, two, three unsafe.Pointer
	if _, err := Open([]Sym{{Name: "one", Slot: &one}, {Name: "two", Slot: &two}}, lib); err != nil {
		t.Fatal(err)
	}
	was := [2]unsafe.Pointer{one, two}
	for _, file := range []string{lib, lib + ".absent"} {
		if _, err := Open([]Sym{{Name: "two", Slot: &one}, {Name: "one", Slot: &two}, {Name: "three", Slot: &three}},
			file); err == nil {
			t.Errorf("%s: no error", file)
		}
		if now := [2]unsafe.Pointer{one, two}; now != was || three != nil {
			t.Errorf("%s: slots %v and %v, want %v and nil", file, now, three, was)
		}
	}
}

func TestNoFileOpens(t *testing.T) {
	dir := t.TempDir()
	absent := filepath.Join(dir, "libabsent.so")
	text := filepath.Join(dir, "libtext.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	var one unsafe.Pointer
	_, err := Open([]Sym{{Name: "one", Slot: &one}}, absent, text)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{absent, text} { // the loader's reason for each
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
	if _, err := Open([]Sym{{Name: "one", Slot: &one}}); err == nil {
		t.Error("no error without any file")
	}
}

func TestFirstFileThatOpensIsUsed(t *testing.T) {
	dir := t.TempDir()
	first, second := build(t, dir, "libfirst.so"), build(t, dir, "libsecond.so")
	var one unsafe.Pointer
	path, err := Open([]Sym{{Name: "one", Slot: &one}}, filepath.Join(dir, "libabsent.so"), first, second)
	if err != nil {
		t.Fatal(err)
	}
	if path != first {
		t.Errorf("path is %q, want %q", path, first)
	}
}
