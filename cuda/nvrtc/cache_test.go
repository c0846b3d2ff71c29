package nvrtc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

var opts = Options{Capability: 80}

// entry returns the file of the cache that holds scale.
func entry(t *testing.T, c Cache) string {
	t.Helper()
	key, err := cacheKey("scale.cu", scale, opts)
	testkit.Must(t, err)
	return filepath.Join(c.Dir, hex.EncodeToString(key[:]))
}

// compile compiles scale, and checks whether it came from the cache.
func compile(t *testing.T, c Cache, wantHit bool) []byte {
	t.Helper()
	image, hit, err := c.Compile("scale.cu", scale, opts)
	testkit.Must(t, err)
	if hit != wantHit {
		t.Errorf("hit is %v, want %v", hit, wantHit)
	}
	return image
}

// onlyEntries checks that a cache has n entries and no other file.
func onlyEntries(t *testing.T, c Cache, n int) {
	t.Helper()
	list, err := os.ReadDir(c.Dir)
	testkit.Must(t, err)
	for _, f := range list {
		if len(f.Name()) != 64 {
			t.Errorf("left behind: %s", f.Name())
		}
	}
	if len(list) != n {
		t.Errorf("%d files, want %d", len(list), n)
	}
}

func TestCacheKeepsNoFailure(t *testing.T) {
	needNVRTC(t)
	c := Cache{Dir: t.TempDir()}
	var e *CompileError
	for range 2 {
		if _, _, err := c.Compile("broken.cu", "broken", opts); !errors.As(err, &e) {
			t.Fatal(err)
		}
	}
	onlyEntries(t, c, 0)
}

// Each damage of an entry is found out, and the entry compiled anew and replaced.
func TestCacheReplacesDamagedEntries(t *testing.T) {
	needNVRTC(t)
	c := Cache{Dir: t.TempDir()}
	image := compile(t, c, false)
	file := entry(t, c)
	whole, err := os.ReadFile(file)
	testkit.Must(t, err)
	flip := func(i int) []byte {
		b := bytes.Clone(whole)
		b[i] ^= 4
		return b
	}
	other := strings.Replace(scale, "*=", "+=", 1)
	otherKey, err := cacheKey("scale.cu", other, opts)
	testkit.Must(t, err)
	otherImage, err := Compile("scale.cu", other, opts)
	testkit.Must(t, err)
	for what, bad := range map[string][]byte{
		"empty":              {},
		"part of the magic":  whole[:5],
		"magic only":         whole[:len(magic)],
		"no image":           whole[:len(magic)+32],
		"cut in the middle":  whole[:len(whole)/2],
		"one byte short":     whole[:len(whole)-1],
		"one byte more":      append(bytes.Clone(whole), 0),
		"magic changed":      flip(3),
		"checksum changed":   flip(len(magic) + 7),
		"first byte changed": flip(len(magic) + 32),
		"last byte changed":  flip(len(whole) - 1),
		"another's entry":    seal(otherImage, otherKey),
		"not an entry":       []byte("#!/bin/sh\n"),
	} {
		testkit.Must(t, os.WriteFile(file, bad, 0o644))
		got, hit, err := c.Compile("scale.cu", scale, opts)
		if err != nil || hit || !bytes.Equal(got, image) {
			t.Errorf("%s: hit %v, image right %v, error %v", what, hit, bytes.Equal(got, image), err)
		}
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, whole) {
			t.Errorf("%s: not replaced (%v)", what, err)
		}
	}
	onlyEntries(t, c, 1)
}

func TestCacheKey(t *testing.T) {
	needNVRTC(t)
	seen := map[[32]byte]string{}
	for _, tc := range []struct {
		what, name, source string
		o                  Options
	}{
		{"plain", "ab", "cd", Options{Capability: 80}},
		{"name", "a", "cd", Options{Capability: 80}},
		{"source", "ab", "c", Options{Capability: 80}},
		{"border of name and source", "abc", "d", Options{Capability: 80}},
		{"capability", "ab", "cd", Options{Capability: 90}},
		{"flag", "ab", "cd", Options{Capability: 80, Flags: []string{"-Dx", "-Dy"}}},
		{"order of flags", "ab", "cd", Options{Capability: 80, Flags: []string{"-Dy", "-Dx"}}},
		{"border of flags", "ab", "cd", Options{Capability: 80, Flags: []string{"-Dx-Dy"}}},
		{"header", "ab", "cd", Options{Capability: 80, Headers: map[string]string{"x": "y"}}},
		{"header's text", "ab", "cd", Options{Capability: 80, Headers: map[string]string{"x": "z"}}},
		{"header's name", "ab", "cd", Options{Capability: 80, Headers: map[string]string{"xy": ""}}},
		{"header like flags", "ab", "cd", Options{Capability: 80, Headers: map[string]string{"-Dx": "-Dy"}}},
		{"two headers", "ab", "cd", Options{Capability: 80, Headers: map[string]string{"x": "y", "y": "x"}}},
	} {
		key, err := cacheKey(tc.name, tc.source, tc.o)
		testkit.Must(t, err)
		if was, ok := seen[key]; ok {
			t.Errorf("%q has the key of %q", tc.what, was)
		}
		seen[key] = tc.what
		for range 8 { // the order in which a map is read changes
			if again, err := cacheKey(tc.name, tc.source, tc.o); err != nil || again != key {
				t.Fatalf("%s: the key changes (%v)", tc.what, err)
			}
		}
	}
}

// Root may write anywhere, but not into a folder that is a file.
func TestCacheFolderCannotBeWritten(t *testing.T) {
	needNVRTC(t)
	file := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(file, nil, 0o644))
	c := Cache{Dir: filepath.Join(file, "cache")}
	compile(t, c, false)
	compile(t, c, false)
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Check: %v", err)
	}
}

func TestCacheCheck(t *testing.T) {
	c := Cache{Dir: filepath.Join(t.TempDir(), "new")}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	onlyEntries(t, c, 0)
	testkit.Refused(t, (Cache{}).Check(), "LOCKSTEP_CACHE")
}

// An image of another cache is kept as if it had been compiled here, and only under its own name.
func TestKeep(t *testing.T) {
	needNVRTC(t)
	from, c := Cache{Dir: t.TempDir()}, Cache{Dir: filepath.Join(t.TempDir(), "new")}
	image := compile(t, from, false)
	testkit.Must(t, c.Keep("other.cu", scale, opts, image))
	compile(t, c, false)
	d := Cache{Dir: t.TempDir()}
	testkit.Must(t, d.Keep("scale.cu", scale, opts, image))
	if again := compile(t, d, true); string(again) != string(image) {
		t.Error("another image")
	}
	if err := (Cache{}).Keep("scale.cu", scale, opts, image); err != nil {
		t.Error(err)
	}
}

func TestNoCache(t *testing.T) {
	needNVRTC(t)
	t.Chdir(t.TempDir())
	compile(t, Cache{}, false)
	compile(t, Cache{}, false)
	onlyEntries(t, Cache{Dir: "."}, 0)
}

func TestDefaultCache(t *testing.T) {
	t.Setenv("LOCKSTEP_CACHE", "/some/where")
	if got := DefaultCache().Dir; got != "/some/where" {
		t.Errorf("LOCKSTEP_CACHE: %q", got)
	}
	t.Setenv("LOCKSTEP_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	if got := DefaultCache().Dir; got != "/xdg/lockstep" {
		t.Errorf("the user's folder: %q", got)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if got := DefaultCache().Dir; got != "" {
		t.Errorf("no folder: %q", got)
	}
}

const rounds = 6

// Two processes compile and remove the same entry over and over: each must always get the right
// image.
func TestCacheOfTwoProcesses(t *testing.T) {
	needNVRTC(t)
	c := Cache{Dir: t.TempDir()}
	var out [2]bytes.Buffer
	var cmds [2]*exec.Cmd
	for i := range cmds {
		cmds[i] = child("cache", "LOCKSTEP_CACHE="+c.Dir)
		cmds[i].Stderr = &out[i]
		testkit.Must(t, cmds[i].Start())
	}
	for i := range cmds {
		if err := cmds[i].Wait(); err != nil {
			t.Errorf("%v\n%s", err, out[i].String())
		}
	}
	compile(t, c, true)
	onlyEntries(t, c, 1)
}

func childCache() error {
	want, err := Compile("scale.cu", scale, opts)
	if err != nil {
		return err
	}
	key, err := cacheKey("scale.cu", scale, opts)
	if err != nil {
		return err
	}
	c := DefaultCache()
	for i := range rounds {
		// The other process may have removed it first.
		if err := os.Remove(filepath.Join(c.Dir, hex.EncodeToString(key[:]))); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return err
		}
		for range 3 {
			got, _, err := c.Compile("scale.cu", scale, opts)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("round %d: an image of %d bytes is not the right one of %d", i, len(got), len(want))
			}
		}
	}
	return nil
}

// Data kept by name comes back whole, under that name alone, or not at all.
func TestCacheByName(t *testing.T) {
	c := Cache{Dir: filepath.Join(t.TempDir(), "made when needed")}
	if data, ok := c.Get("a"); ok {
		t.Errorf("%q from an empty folder", data)
	}
	for name, data := range map[string]string{"a": "first", "b": "second"} {
		testkit.Must(t, c.Put(name, []byte(data)))
	}
	if err := c.Put("a", []byte("third")); err != nil { // replaces
		t.Fatal(err)
	}
	onlyEntries(t, c, 2)
	for name, want := range map[string]string{"a": "third", "b": "second"} {
		if data, ok := c.Get(name); !ok || string(data) != want {
			t.Errorf("%s is %q, %v; want %q", name, data, ok, want)
		}
	}
	if _, ok := c.Get("c"); ok {
		t.Error("something by a name that was never used")
	}
	key := nameKey("a")
	file := filepath.Join(c.Dir, hex.EncodeToString(key[:]))
	whole, err := os.ReadFile(file)
	testkit.Must(t, err)
	other := nameKey("b")
	for what, damaged := range map[string][]byte{"cut": whole[:len(whole)-1], "empty": nil,
		"changed": append(whole[:len(whole)-1:len(whole)-1], 'x')} {
		testkit.Must(t, os.WriteFile(file, damaged, 0o644))
		if data, ok := c.Get("a"); ok {
			t.Errorf("%s: %q", what, data)
		}
	}
	testkit.Must(t, os.WriteFile(filepath.Join(c.Dir, hex.EncodeToString(other[:])), whole, 0o644))
	if data, ok := c.Get("b"); ok {
		t.Errorf("what was kept as a is %q as b", data)
	}
	none := Cache{}
	if err := none.Put("a", nil); err != nil {
		t.Error(err)
	}
	if _, ok := none.Get("a"); ok {
		t.Error("something from no folder")
	}
}
