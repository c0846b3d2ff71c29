package dl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
)

// double is a library of two integers and nothing else. Data symbols are found as functions are,
// and a test can read them without C.
func double(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "double.c")
	testkit.Must(t, os.WriteFile(source, []byte("int one = 1;\nint two = 2;\n"), 0o644))
	return testkit.BuildLibrary(t, dir, "libdouble.so", source)
}

// The first file that opens fills every slot. A symbol that it lacks leaves nil if it is optional,
// and is an error without a slot filled if it is not.
func TestOpen(t *testing.T) {
	first, second := double(t), double(t)
	stale := 0
	one, two, three := unsafe.Pointer(nil), unsafe.Pointer(nil), unsafe.Pointer(&stale)
	path, err := Open([]Sym{{Name: "one", Slot: &one}, {Name: "two", Slot: &two},
		{Name: "three", Slot: &three, Optional: true}}, first+".absent", first, second)
	if err != nil || path != first || *(*int32)(one) != 1 || *(*int32)(two) != 2 || three != nil {
		t.Errorf("%s, %v: one at %v, two at %v, three at %v", path, err, one, two, three)
	}
	one = nil
	_, err = Open([]Sym{{Name: "one", Slot: &one}, {Name: "three", Slot: &three}, {Name: "four", Slot: &two}}, first)
	for _, want := range []string{first, "three", "four"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if one != nil {
		t.Error("a slot is filled after an error")
	}
}

// A library in use stays in use: a later failure to open does not take its entry points away.
func TestFailureLeavesTheTable(t *testing.T) {
	lib := double(t)
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
	testkit.Must(t, os.WriteFile(text, []byte("not a library"), 0o644))
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
