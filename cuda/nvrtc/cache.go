package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// Cache keeps compiled images, and other results that take long to find out (Put), for later runs
// and other processes. They are files of one folder.
//
// A file is named for everything its image depends on: the source and its name, headers, flags,
// name expressions, capability and the version of NVRTC. Processes may share the folder: a file is
// written under another name and renamed, so that a reader finds a whole entry or none. An entry
// that is damaged, or does not match its name, is compiled anew and replaced. Nothing is ever
// removed; the folder may be emptied at any time.
type Cache struct {
	Dir string // "" for no cache
	Own bool   // entries that another user could have written are none: they are code of the host
}

// DefaultCache returns the cache in $LOCKSTEP_CACHE or else in the user's folder for caches, under
// lockstep. Without either, the cache has no folder and keeps nothing.
func DefaultCache() Cache {
	if dir := os.Getenv("LOCKSTEP_CACHE"); dir != "" {
		return Cache{Dir: dir}
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return Cache{}
	}
	return Cache{Dir: filepath.Join(dir, "lockstep")}
}

// magic begins every entry. Its number changes with the format, and with anything in Compile that
// changes an image.
const magic = "lockstep nvrtc 2\n"

// Compile is the function Compile, and says whether the image came from the cache. A folder
// that cannot be read or written is no error: the image is compiled every time, and Check says why.
func (c Cache) Compile(name, source string, o Options) (image Image, hit bool, err error) {
	var key [sha256.Size]byte
	if c.Dir != "" {
		if key, err = cacheKey(name, source, o); err != nil {
			return nil, false, err
		}
		if entry, err := readEntry(c.file(key), c.Own); err == nil {
			if image, ok := unseal(entry, key); ok {
				return image, true, nil
			}
		}
	}
	defer c.Making(fmt.Sprintf("%s for sm_%d", name, o.Capability))()
	if image, err = Compile(name, source, o); err != nil {
		return nil, false, err
	}
	if c.Dir != "" {
		_ = c.store(c.file(key), seal(image, key)) // Check reports it
	}
	return image, false, nil
}

// slow is how long this process has made entries, and who is told when that is long.
var slow struct {
	spent atomic.Int64
	tell  atomic.Pointer[func(what, dir string)]
}

// TellSlow sets the function that is told once, when this process has spent 2 s to make entries
// that caches lack: what it makes then, and the folder where that is kept.
func TellSlow(tell func(what, dir string)) {
	slow.spent.Store(0)
	slow.tell.Store(&tell)
}

// Making notes that an entry is being made, until done is called.
func (c Cache) Making(what string) (done func()) {
	begun := time.Now()
	late := time.AfterFunc(2*time.Second-time.Duration(slow.spent.Load()), func() {
		if tell := slow.tell.Swap(nil); tell != nil {
			(*tell)(what, c.Dir)
		}
	})
	return func() {
		late.Stop()
		slow.spent.Add(int64(time.Since(begun)))
	}
}

// Keep puts an image into the cache that Compile has returned for the same arguments, from another
// cache. Without a folder it keeps nothing.
func (c Cache) Keep(name, source string, o Options, image Image) error {
	if c.Dir == "" {
		return nil
	}
	key, err := cacheKey(name, source, o)
	if err != nil {
		return err
	}
	return c.store(c.file(key), seal(image, key))
}

// Check returns why the cache keeps nothing, or nil: it makes the folder and a file in it, and
// removes the file.
func (c Cache) Check() error {
	if c.Dir == "" {
		return errors.New("nvrtc: compiled kernels are not kept: there is no cache folder (set LOCKSTEP_CACHE)")
	}
	temp, err := c.write([]byte(magic))
	if err == nil {
		err = os.Remove(temp)
	}
	if err != nil {
		return fmt.Errorf("nvrtc: compiled kernels are not kept: %w", err)
	}
	return nil
}

// Get returns the data that Put kept under a name. It returns false if there is nothing, or nothing
// whole.
func (c Cache) Get(name string) (data []byte, ok bool) {
	if c.Dir == "" {
		return nil, false
	}
	key := nameKey(name)
	entry, err := readEntry(c.file(key), c.Own)
	if err != nil {
		return nil, false
	}
	return unseal(entry, key)
}

// Put keeps data other than an image in the folder: a result that took long to find out on this
// machine. name says all that it depends on. Without a folder it keeps nothing.
func (c Cache) Put(name string, data []byte) error {
	if c.Dir == "" {
		return nil
	}
	key := nameKey(name)
	return c.store(c.file(key), seal(data, key))
}

// file is where an entry lies.
func (c Cache) file(key [sha256.Size]byte) string {
	return filepath.Join(c.Dir, hex.EncodeToString(key[:]))
}

func nameKey(name string) (key [sha256.Size]byte) {
	h := sha256.New()
	hashText(h, magic, "named", name)
	h.Sum(key[:0])
	return key
}

func cacheKey(name, source string, o Options) (key [sha256.Size]byte, err error) {
	if err := Load(); err != nil {
		return key, err
	}
	headers, err := o.headers()
	if err != nil {
		return key, err
	}
	major, minor := Version()
	h := sha256.New()
	hashText(h, magic, name, source)
	specific := 0
	if o.ArchSpecific {
		specific = 1
	}
	hashInts(h, o.Capability, major, minor, len(headers), len(o.Flags), len(o.Names), specific)
	for _, x := range headers {
		hashText(h, x.name, x.text)
	}
	hashText(h, o.Flags...)
	hashText(h, o.Names...)
	h.Sum(key[:0])
	return key, nil
}

// Texts go in with their length, so that no two lists of texts are the same bytes.
func hashText(h hash.Hash, texts ...string) {
	for _, s := range texts {
		hashInts(h, len(s))
		h.Write([]byte(s))
	}
}

func hashInts(h hash.Hash, v ...int) {
	var b [8]byte
	for _, n := range v {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
}

// maxEntry is beyond any image; a file that is larger is no entry.
const maxEntry = 1 << 28

// readEntry reads a file of the cache. Anything but a regular file is an error at once: opening a
// pipe would wait for its writer. With own a file that another user could have written is one, too.
func readEntry(file string, own bool) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	others := own && (st.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) || st.Mode()&0o022 != 0)
	if !st.Mode().IsRegular() || st.Size() > maxEntry || others {
		return nil, fmt.Errorf("nvrtc: %s is no entry of the cache", file)
	}
	entry := make([]byte, st.Size())
	_, err = io.ReadFull(f, entry)
	return entry, err
}

// checksum is over the key too: an entry under another's name is found out.
func checksum(image []byte, key [sha256.Size]byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write(key[:])
	h.Write(image)
	h.Sum(sum[:0])
	return sum
}

// seal makes the bytes of an entry: magic, checksum, image.
func seal(image []byte, key [sha256.Size]byte) []byte {
	sum := checksum(image, key)
	return slices.Concat([]byte(magic), sum[:], image)
}

// unseal returns the image of an entry if it is whole and the key's own.
func unseal(entry []byte, key [sha256.Size]byte) (image []byte, ok bool) {
	rest, ok := bytes.CutPrefix(entry, []byte(magic))
	if !ok || len(rest) <= sha256.Size {
		return nil, false
	}
	image = rest[sha256.Size:]
	sum := checksum(image, key)
	return image, bytes.Equal(sum[:], rest[:sha256.Size])
}

// store writes an entry so that it appears whole or not at all. After a crash of the machine it may
// be there in part, which its checksum shows.
func (c Cache) store(file string, entry []byte) error {
	temp, err := c.write(entry)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, file); err != nil {
		os.Remove(temp)
		return err
	}
	return nil
}

// write makes a missing folder and a new file in it, and returns the file's name.
func (c Cache) write(entry []byte) (temp string, err error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(c.Dir, "new-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(entry)
	// Other users of a shared folder may read the entries.
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
