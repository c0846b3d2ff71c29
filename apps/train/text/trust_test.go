package text

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
)

// Others may have written files, or take them away while they are read.

// A token file that another user may have written is not believed, though its sums are right. The
// user's own file stands beside it.
func TestForeignTokenFile(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	traintest.Write(t, dir, "a", strings.Repeat("some text\n", 50))
	want, path := load(t, 1, Bytes{}, cache, dir)
	forge := func() { // of as many other tokens, with sums that are right
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h, err := decodeTokenHeader(b, int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		body := bytes.Repeat([]byte{'x'}, len(b)-tokenHeaderBytes)
		h.crc = crc32.Checksum(body, castagnoli)
		if err := os.WriteFile(path, append(h.encode(), body...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	forge()
	if got, _ := load(t, 1, Bytes{}, cache, dir); slices.Equal(got, want) {
		t.Fatal("the forged file does not pass for a whole one, so that this test shows nothing")
	}
	if err := os.Chmod(path, 0o622); err != nil {
		t.Fatal(err)
	}
	if got, at := load(t, 2, Bytes{}, cache, dir); !slices.Equal(got, want) || at != path {
		t.Errorf("a file that anybody can write is believed, or not made again in its place: %s", at)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	const nobody = 65534
	forge()
	if err := os.Chown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cache, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, at := load(t, 2, Bytes{}, cache, dir)
		if name := strings.TrimSuffix(path, ".tok") + "-user0.tok"; !slices.Equal(got, want) || at != name {
			t.Errorf("another user's file is believed, or %s is not %s", at, name)
		}
		if st, err := os.Stat(path); err != nil || ownerOf(st) != nobody {
			t.Errorf("another user's file is replaced: %v", err)
		}
	}
	// A user who names another user's folder trusts that user, if nobody else can write there.
	if err := os.Remove(strings.TrimSuffix(path, ".tok") + "-user0.tok"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(cache, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for mode, believed := range map[os.FileMode]bool{0o755: true, 0o775: false, 0o757: false} {
		if err := os.Chmod(cache, mode); err != nil {
			t.Fatal(err)
		}
		f, err := OpenWhole(path, Bytes{}, keyOf(t, path))
		if (err == nil) != believed ||
			err != nil && !strings.Contains(err.Error(), fmt.Sprintf("the work of user %d", nobody)) {
			t.Errorf("in its owner's folder of mode %o: %v", mode, err)
		}
		if err == nil {
			f.Close()
		}
	}
}

func keyOf(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := decodeTokenHeader(b, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return h.key
}

// guard takes no other panic for a lost file.
func TestGuard(t *testing.T) {
	f := InMemory(2, traintest.FlatTokens(10))
	for _, want := range []any{"mine", fmt.Errorf("mine")} {
		func() {
			defer func() {
				if p := recover(); p != want {
					t.Errorf("panic %v, want %v", p, want)
				}
			}()
			_ = f.Guard(func() error { panic(want) })
		}()
	}
	defer func() {
		if p := recover(); p == nil {
			t.Error("a nil pointer is taken for a lost file")
		}
	}()
	_ = f.Guard(func() error { var none *int; *none = 1; return nil })
}
