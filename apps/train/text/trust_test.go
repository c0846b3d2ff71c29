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
	"lockstep/internal/testkit"
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
		testkit.Must(t, err)
		h, err := decodeTokenHeader(b, int64(len(b)))
		testkit.Must(t, err)
		body := bytes.Repeat([]byte{'x'}, len(b)-tokenHeaderBytes)
		h.crc = crc32.Checksum(body, castagnoli)
		testkit.Must(t, os.WriteFile(path, append(h.encode(), body...), 0o600))
	}
	forge()
	if got, _ := load(t, 1, Bytes{}, cache, dir); slices.Equal(got, want) {
		t.Fatal("the forged file does not pass for a whole one, so that this test shows nothing")
	}
	testkit.Must(t, os.Chmod(path, 0o622))
	if got, at := load(t, 2, Bytes{}, cache, dir); !slices.Equal(got, want) || at != path {
		t.Errorf("a file that anybody can write is believed, or not made again in its place: %s", at)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	const nobody = 65534
	forge()
	testkit.Must(t, os.Chown(path, nobody, nobody))
	testkit.Must(t, os.Chmod(cache, 0o777|os.ModeSticky))
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
	testkit.Must(t, os.Remove(strings.TrimSuffix(path, ".tok")+"-user0.tok"))
	testkit.Must(t, os.Chown(cache, nobody, nobody))
	for mode, believed := range map[os.FileMode]bool{0o755: true, 0o775: false, 0o757: false} {
		testkit.Must(t, os.Chmod(cache, mode))
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
	testkit.Must(t, err)
	h, err := decodeTokenHeader(b, int64(len(b)))
	testkit.Must(t, err)
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
