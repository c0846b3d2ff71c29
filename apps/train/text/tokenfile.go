package text

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/internal/runfiles"
)

// A token file is this header and then count tokens of width bytes, all
// little-endian:
//
//	 0  magic "LOCKTOK\n"
//	 8  version  uint32
//	12  width    uint32  bytes of a token, 1 or 2
//	16  ids      uint32  every token is below
//	20  files    uint32  how many documents
//	24  count    uint64  how many tokens
//	32  key      32 bytes, SHA-256 of tokenizer and contents
//	64  crc      uint32  CRC-32C of the tokens
//	68  crc      uint32  CRC-32C of the 68 bytes before
const (
	tokenFileMagic   = "LOCKTOK\n"
	tokenFileVersion = 1
	tokenHeaderBytes = 72
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tokenHeader is the header of a token file.
type tokenHeader struct {
	width, ids, files uint32
	count             uint64
	key               [sha256.Size]byte
	crc               uint32
}

func (h tokenHeader) encode() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, tokenHeaderBytes), tokenFileMagic...)
	b = le.AppendUint32(b, tokenFileVersion)
	b = le.AppendUint32(b, h.width)
	b = le.AppendUint32(b, h.ids)
	b = le.AppendUint32(b, h.files)
	b = le.AppendUint64(b, h.count)
	b = append(b, h.key[:]...)
	b = le.AppendUint32(b, h.crc)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeTokenHeader reads a header and checks it against the size of its file.
func decodeTokenHeader(b []byte, size int64) (h tokenHeader, err error) {
	le := binary.LittleEndian
	if len(b) < tokenHeaderBytes || size < tokenHeaderBytes {
		return h, fmt.Errorf("%d bytes are no token file", size)
	}
	if string(b[:8]) != tokenFileMagic {
		return h, errors.New("not a token file")
	}
	if v := le.Uint32(b[8:]); v != tokenFileVersion {
		return h, fmt.Errorf("version %d, want %d", v, tokenFileVersion)
	}
	if crc32.Checksum(b[:68], castagnoli) != le.Uint32(b[68:]) {
		return h, errors.New("the header is damaged")
	}
	h = tokenHeader{width: le.Uint32(b[12:]), ids: le.Uint32(b[16:]), files: le.Uint32(b[20:]),
		count: le.Uint64(b[24:]), key: [sha256.Size]byte(b[32:64]), crc: le.Uint32(b[64:])}
	if h.width != 1 && h.width != 2 {
		return h, fmt.Errorf("tokens of %d bytes", h.width)
	}
	if h.ids == 0 || h.ids > 1<<(8*h.width) {
		return h, fmt.Errorf("%d different tokens of %d bytes", h.ids, h.width)
	}
	if body := uint64(size - tokenHeaderBytes); h.count > math.MaxInt64/2 || h.count*uint64(h.width) != body {
		return h, fmt.Errorf("%d tokens of %d bytes in %d bytes", h.count, h.width, body)
	}
	if uint64(h.files) > h.count { // each ends with a separator
		return h, fmt.Errorf("%d documents in %d tokens", h.files, h.count)
	}
	return h, nil
}

// File is a token file in memory: mapped, read-only, shared by all ranks of
// the node.
type File struct {
	path   string
	header tokenHeader
	mem    []byte // the whole file
	body   []byte // the tokens
}

// OpenWhole is OpenFile, and reads all of the file to check that it is whole.
func OpenWhole(path string, t Tokenizer, key [sha256.Size]byte) (*File, error) {
	f, err := OpenFile(path, t, key)
	if err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// check fails if the tokens are not those that were written.
func (f *File) check() error {
	return f.Guard(func() error {
		if crc32.Checksum(f.body, castagnoli) != f.header.crc {
			return fmt.Errorf("%s: the tokens are damaged", f.path)
		}
		return nil
	})
}

// OpenFile maps the token file at path. It must be for this tokenizer and key, and not written by
// another user.
func OpenFile(path string, t Tokenizer, key [sha256.Size]byte) (*File, error) {
	f, st, err := runfiles.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := believable(path, st); err != nil {
		return nil, err
	}
	head := make([]byte, min(tokenHeaderBytes, st.Size()))
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	h, err := decodeTokenHeader(head, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if h.key != key || h.width != uint32(t.Width()) || h.ids != uint32(t.IDs()) {
		return nil, fmt.Errorf("%s: made from other data", path)
	}
	if st.Size() > math.MaxInt {
		return nil, fmt.Errorf("%s: %d bytes are too many to map on this machine", path, st.Size())
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, &fs.PathError{Op: "mmap", Path: path, Err: err}
	}
	return &File{path, h, mem, mem[tokenHeaderBytes:]}, nil
}

// believable returns an error if another user could have written a token file. Its sums say that it
// is whole, not who wrote it. The owner of the folder may have written it, if the folder is closed
// to others: who names such a folder trusts its owner.
func believable(path string, st fs.FileInfo) error {
	if st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: not only its owner can write it", path)
	}
	owner := ownerOf(st)
	if owner == os.Getuid() || owner == 0 {
		return nil
	}
	if dir, err := os.Stat(filepath.Dir(path)); err == nil && ownerOf(dir) == owner && dir.Mode().Perm()&0o022 == 0 {
		return nil
	}
	return fmt.Errorf("%s: it is the work of user %d", path, owner)
}

// ownerOf returns the user who owns a file.
func ownerOf(st fs.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }

// InMemory returns tokens of width bytes each, without a file.
func InMemory(width int, body []byte) *File {
	return &File{header: tokenHeader{width: uint32(width), count: uint64(len(body) / width)}, body: body}
}

// Guard calls fn, which reads the tokens. If the file has lost them meanwhile, because it was
// truncated or its disk fails, the kernel sends SIGBUS, and Guard returns an error.
func (f *File) Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		fault, ok := p.(interface{ Addr() uintptr })
		if !ok || fault.Addr()-uintptr(unsafe.Pointer(unsafe.SliceData(f.mem))) >= uintptr(len(f.mem)) {
			panic(p)
		}
		err = fmt.Errorf("%s: its tokens are gone: it was truncated while it was in use, or its disk fails", f.path)
	}()
	return fn()
}

// Close unmaps the file. Nobody may read the tokens after it. Closing twice is allowed.
func (f *File) Close() error {
	mem := f.mem
	f.mem, f.body = nil, nil
	if mem == nil {
		return nil
	}
	return syscall.Munmap(mem)
}

// Len returns the number of tokens.
func (f *File) Len() int { return int(f.header.count) }

// Read copies tokens [at, at+len(dst)) to dst.
func (f *File) Read(dst []int32, at int) {
	if f.header.width == 1 {
		for i, b := range f.body[at : at+len(dst)] {
			dst[i] = int32(b)
		}
		return
	}
	b := f.body[2*at : 2*(at+len(dst))]
	for i := range dst {
		dst[i] = int32(binary.LittleEndian.Uint16(b[2*i:]))
	}
}

// cacheDirs returns the folders for token files, best first: only the one that --cache names, or
// the user's cache folder and then tempCache. The error says why the user has no cache folder.
func cacheDirs(flag string) ([]string, error) {
	if flag != "" {
		return []string{flag}, nil
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return []string{tempCache()}, err
	}
	return []string{filepath.Join(d, "lockstep", "tokens"), tempCache()}, nil
}

// tempCache returns the user's own folder among the temporary files.
func tempCache() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("lockstep-%d", os.Getuid()), "tokens")
}

// trusted reports whether no other user can put files into dir. A temporary folder that somebody
// else has made first must not be used.
func trusted(dir string) bool {
	if dir != tempCache() {
		return true
	}
	st, err := os.Lstat(filepath.Dir(dir))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return st.IsDir() && ownerOf(st) == os.Getuid() && st.Mode().Perm()&0o022 == 0
}

// newTemp makes an empty file beside the token file name, in the first folder that can be written.
func newTemp(cache, name string, log zerolog.Logger) (*os.File, error) {
	dirs, why := cacheDirs(cache)
	var err error
	for _, dir := range dirs {
		if err = os.MkdirAll(dir, 0o700); err == nil && !trusted(dir) {
			err = fmt.Errorf("others can write to %s", filepath.Dir(dir))
		}
		if err == nil {
			removeStale(dir)
			var f *os.File
			if f, err = os.CreateTemp(dir, name+".tmp-*"); err == nil {
				if why != nil {
					log.Warn().Str("cache", dir).Err(why).
						Msg("the user's cache folder cannot be used, tokens go to a temporary one")
				}
				return f, nil
			}
		}
		if why == nil {
			why = err
		}
	}
	return nil, BadInput("no folder for the token file: %w; give one with --cache", err)
}

// removeStale removes the unfinished files of runs that were killed a day ago.
func removeStale(dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.tok.tmp-*"))
	if err != nil {
		return
	}
	for _, p := range paths {
		if st, err := os.Stat(p); err == nil && time.Since(st.ModTime()) > 24*time.Hour {
			os.Remove(p)
		}
	}
}
