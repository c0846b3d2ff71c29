package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"lockstep/internal/testkit"
)

// Entries are read as they are, and with a checksum made right, which no fuzzer guesses.
func FuzzUnseal(f *testing.F) {
	var key [sha256.Size]byte
	f.Add(seal([]byte("image"), key), byte(0))
	f.Add(seal(nil, key), byte(0))
	f.Add(seal([]byte("another's"), [sha256.Size]byte{1}), byte(0))
	f.Add([]byte(magic), byte(1))
	f.Add([]byte{}, byte(255))
	f.Fuzz(func(t *testing.T, entry []byte, k byte) {
		key := [sha256.Size]byte{k}
		if image, ok := unseal(entry, key); ok && (len(image) == 0 || !bytes.Equal(seal(image, key), entry)) {
			t.Errorf("%q passed with image %q", entry, image)
		}
		sealed := seal(entry, key)
		image, ok := unseal(sealed, key)
		if ok != (len(entry) > 0) || ok && !bytes.Equal(image, entry) {
			t.Errorf("image %q came back as %q, %v", entry, image, ok)
		}
		at := int(k) * len(sealed) / 256
		sealed[at] ^= 1 << (k % 8)
		if _, ok := unseal(sealed, key); ok {
			t.Errorf("image %q: byte %d of the entry changed, and it passed", entry, at)
		}
	})
}

// Other things in the place of an entry are not waited for, nor read into memory.
func TestReadEntry(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, make := range map[string]func(string) error{
		"pipe":   func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"folder": func(p string) error { return os.Mkdir(p, 0o700) },
		"link":   func(p string) error { return os.Symlink("/dev/zero", p) },
		"large": func(p string) error {
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(p, maxEntry+1)
		},
		"nothing": func(string) error { return nil },
	} {
		testkit.Must(t, make(path(name)))
		if b, err := readEntry(path(name), false); err == nil || len(b) > 0 {
			t.Errorf("%s: %d bytes, %v, want an error", name, len(b), err)
		}
	}
	for _, want := range [][]byte{{}, []byte("some bytes")} {
		testkit.Must(t, os.WriteFile(path("entry"), want, 0o600))
		if b, err := readEntry(path("entry"), true); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
	}
}

// A pipe in the place of an entry is replaced by one.
func TestCacheReplacesPipe(t *testing.T) {
	needNVRTC(t)
	c := Cache{Dir: t.TempDir()}
	testkit.Must(t, syscall.Mkfifo(entry(t, c), 0o600))
	image := compile(t, c, false)
	if got := compile(t, c, true); !bytes.Equal(got, image) {
		t.Error("the image kept is another")
	}
	onlyEntries(t, c, 1)
}
