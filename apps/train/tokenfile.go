package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rs/zerolog"
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
	if body := uint64(size - tokenHeaderBytes); h.count > math.MaxInt64/2 || h.count*uint64(h.width) != body {
		return h, fmt.Errorf("%d tokens of %d bytes in %d bytes", h.count, h.width, body)
	}
	return h, nil
}

// tokenFile is a token file in memory: mapped, read-only, shared by all ranks of
// the node.
type tokenFile struct {
	path   string
	header tokenHeader
	mem    []byte // the whole file
	body   []byte // the tokens
}

// openTokenFile maps the token file at path. It must be for this tokenizer and
// key and undamaged; verify reads all of it to see that it is.
func openTokenFile(path string, t tokenizer, key [sha256.Size]byte, verify bool) (*tokenFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	head := make([]byte, tokenHeaderBytes)
	if n, err := io.ReadFull(f, head); err != nil {
		head = head[:n]
	}
	h, err := decodeTokenHeader(head, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if h.key != key || h.width != uint32(t.width()) || h.ids != uint32(t.ids()) {
		return nil, fmt.Errorf("%s: made from other data", path)
	}
	if st.Size() > math.MaxInt {
		return nil, fmt.Errorf("%s: %d bytes are too many to map on this machine", path, st.Size())
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, &fs.PathError{Op: "mmap", Path: path, Err: err}
	}
	tf := &tokenFile{path, h, mem, mem[tokenHeaderBytes:]}
	if verify && crc32.Checksum(tf.body, castagnoli) != h.crc {
		return nil, errors.Join(fmt.Errorf("%s: the tokens are damaged", path), tf.Close())
	}
	return tf, nil
}

// Close unmaps the file; the tokens must not be read after it. Closing twice is
// allowed.
func (f *tokenFile) Close() error {
	mem := f.mem
	f.mem, f.body = nil, nil
	if mem == nil {
		return nil
	}
	return syscall.Munmap(mem)
}

// len is the number of tokens.
func (f *tokenFile) len() int { return int(f.header.count) }

// read copies tokens [at, at+len(dst)) to dst.
func (f *tokenFile) read(dst []int32, at int) {
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

// cacheDirs returns the folders in which token files are looked for and made, best
// first: the one that --cache names alone, or the user's cache folder and, for
// those who have none, a folder of their own among the temporary files.
func cacheDirs(flag string) []string {
	if flag != "" {
		return []string{flag}
	}
	var dirs []string
	if d, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(d, "lockstep", "tokens"))
	}
	return append(dirs, filepath.Join(os.TempDir(), fmt.Sprintf("lockstep-%d", os.Getuid()), "tokens"))
}

// ownDir reports whether no other user can put files into the temporary folder
// dir: one that somebody else has made first is not to be trusted.
func ownDir(dir string) bool {
	st, err := os.Lstat(filepath.Dir(dir))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.IsDir() && int(sys.Uid) == os.Getuid() && st.Mode().Perm()&0o022 == 0
}

// newTemp makes an empty file beside the token file name, in the first folder
// that can be written.
func newTemp(dirs []string, name string, log zerolog.Logger) (*os.File, error) {
	var errs []error
	for i, dir := range dirs {
		err := os.MkdirAll(dir, 0o700)
		if err == nil && i > 0 && !ownDir(dir) {
			err = fmt.Errorf("%s belongs to somebody else", dir)
		}
		if err == nil {
			removeStale(dir)
			var f *os.File
			if f, err = os.CreateTemp(dir, name+".tmp-*"); err == nil {
				if i > 0 {
					log.Warn().Str("cache", dir).Err(errs[0]).Msg("the cache folder cannot be written, tokens go to a temporary one")
				}
				return f, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, inputError{fmt.Errorf("no folder for the token file: %w; give one with --cache", errs[len(errs)-1])}
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

// dataOptions says what data is wanted and how it is read.
type dataOptions struct {
	inputs  []input
	tokens  tokenizer
	cache   string // folder, "" for the user's own
	threads int    // goroutines of this rank
	log     zerolog.Logger
	// progress makes a bar for work on total bytes; it may be nil.
	progress func(what string, total int64) *meter
}

// roundBytes is how much text each rank tokenises before it writes.
const roundBytes = 64 << 20

// openData returns the tokens of the inputs, from the cache if they are there, else
// made by all ranks of g together. Collective over g.
func openData(g group, o dataOptions) (*tokenFile, error) {
	b := &builder{group: g, dataOptions: o}
	if err := b.list(); err != nil {
		return nil, err
	}
	path, err := b.find()
	if err != nil {
		return nil, err
	}
	if path == "" {
		if path, err = b.build(); err != nil {
			return nil, err
		}
	}
	f, err := openTokenFile(path, o.tokens, b.key, false)
	if _, err = g.gather(nil, err); err != nil {
		return nil, err
	}
	return f, nil
}

// builder makes one token file. The first rank of the group decides, all work.
type builder struct {
	group
	dataOptions
	files []source
	docs  []document
	key   [sha256.Size]byte
	start time.Time
}

// fileName is the token file's name in its folder.
func (b *builder) fileName() string {
	return b.tokens.name() + "-" + hex.EncodeToString(b.key[:16]) + ".tok"
}

// list finds the files, hashes them and computes the key. All ranks hold the same
// list after it.
func (b *builder) list() error {
	b.start = time.Now()
	var listed struct {
		Files   []source
		Skipped skips
	}
	var msg []byte
	var err error
	if b.rank == 0 {
		if listed.Files, listed.Skipped, err = listFiles(b.inputs); err == nil {
			msg, err = encodeGob(listed)
		}
	}
	all, err := b.gather(msg, err)
	if err != nil {
		return err
	}
	if err := decodeGob(all[0], &listed); err != nil {
		return err
	}
	b.files = listed.Files
	order := make([]int, len(b.files))
	for i := range order {
		order[i] = i
	}
	todo, before := pieces(b.files, order)
	lo, hi := share(before, b.rank, b.size)
	sums := make([]byte, (hi-lo)*len(pieceSum{}))
	err = parallel(b.threads, hi-lo, func(i int) error {
		s, err := hashPiece(b.files[todo[lo+i].file], todo[lo+i].index)
		copy(sums[i*len(s):], s[:])
		return err
	})
	all, err = b.gather(sums, err)
	if err != nil {
		return err
	}
	flat := bytes.Join(all, nil)
	every := make([]pieceSum, len(todo))
	if len(flat) != len(todo)*len(pieceSum{}) {
		return fmt.Errorf("%d bytes of sums for %d pieces", len(flat), len(todo))
	}
	for i := range every {
		every[i] = pieceSum(flat[i*len(pieceSum{}):])
	}
	b.docs = documents(b.files, todo, every, &listed.Skipped)
	b.key = contentKey(b.tokens, b.docs)
	if len(b.docs) == 0 {
		return badInput("--data: no text files found (skipped: %s)", listed.Skipped)
	}
	var size int64
	for _, d := range b.docs {
		size += b.files[d.file].Size
	}
	b.log.Info().Int("files", len(b.docs)).Int64("bytes", size).Stringer("skipped", listed.Skipped).
		Str("from", b.from()).Int64("ms", time.Since(b.start).Milliseconds()).Msg("data")
	return nil
}

// from names the inputs for the log.
func (b *builder) from() string {
	if n := len(b.inputs); n > 1 {
		return fmt.Sprintf("%s and %d more", b.inputs[0].Path, n-1)
	}
	return b.inputs[0].Path
}

// find returns the path of a good token file, "" if there is none.
func (b *builder) find() (string, error) {
	found := ""
	if b.rank == 0 {
		for i, dir := range cacheDirs(b.cache) {
			if i > 0 && !ownDir(dir) {
				continue
			}
			path := filepath.Join(dir, b.fileName())
			f, err := openTokenFile(path, b.tokens, b.key, true)
			if err == nil {
				found = path
				err = f.Close()
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				b.log.Warn().Err(err).Msg("the token file cannot be used and is made again")
			}
			if found != "" {
				break
			}
		}
	}
	all, err := b.gather([]byte(found), nil)
	if err != nil {
		return "", err
	}
	return string(all[0]), nil
}

// build makes the token file: all ranks tokenise and write their parts of a
// temporary file, which then gets its header and its name. Others that make the
// same file meanwhile have temporary files of their own; whoever is last to
// rename wins, with the same contents.
func (b *builder) build() (path string, err error) {
	var f *os.File
	name := ""
	if b.rank == 0 {
		if f, err = newTemp(cacheDirs(b.cache), b.fileName(), b.log); err == nil {
			name = f.Name()
			path = filepath.Join(filepath.Dir(name), b.fileName())
			defer func() {
				f.Close()
				os.Remove(name) // gone already if all went well
			}()
		}
	}
	all, err := b.gather([]byte(name), err)
	if err != nil {
		return "", err
	}
	if b.rank != 0 {
		f, err = os.OpenFile(string(all[0]), os.O_WRONLY, 0)
		if err == nil {
			defer f.Close()
		}
	}
	if _, err = b.gather(nil, err); err != nil {
		return "", err
	}
	count, err := b.encode(f)
	if err != nil {
		return "", err
	}
	if b.rank == 0 {
		err = b.finish(f, path, count)
	}
	all, err = b.gather([]byte(path), err)
	if err != nil {
		return "", err
	}
	b.log.Info().Int64("tokens", count).Str("file", string(all[0])).Int64("ms", time.Since(b.start).Milliseconds()).Msg("tokenised")
	return string(all[0]), nil
}

// encode tokenises the documents into f and returns the number of tokens. It goes
// in rounds, each of a bounded amount of text, because the place of a rank's
// tokens is known only when the ranks before it have counted theirs.
func (b *builder) encode(f *os.File) (count int64, err error) {
	order := make([]int, len(b.docs))
	for i, d := range b.docs {
		order[i] = d.file
	}
	todo, before := pieces(b.files, order)
	var bar *meter
	if b.progress != nil {
		bar = b.progress("tokenising", before[len(todo)])
		defer bar.finish()
	}
	width := int64(b.tokens.width())
	for lo := 0; lo < len(todo); {
		hi := lo + 1
		for hi < len(todo) && before[hi+1]-before[lo] <= roundBytes*int64(b.size) {
			hi++
		}
		first, last := share(before[lo:hi+1], b.rank, b.size)
		first, last = first+lo, last+lo
		out := make([][]byte, last-first)
		err := parallel(b.threads, len(out), func(i int) error {
			p := todo[first+i]
			tokens, err := encodePiece(b.tokens, b.files[p.file], p.index)
			out[i] = tokens
			bar.add((before[first+i+1] - before[first+i]) * int64(b.size)) // the others are as far
			return err
		})
		var mine int64
		for _, t := range out {
			mine += int64(len(t)) / width
		}
		all, err := b.gather(binary.LittleEndian.AppendUint64(nil, uint64(mine)), err)
		if err != nil {
			return 0, err
		}
		at := count
		for r, m := range all {
			n := int64(binary.LittleEndian.Uint64(m))
			if r < b.rank {
				at += n
			}
			count += n
		}
		if _, err := b.gather(nil, writeAll(f, out, tokenHeaderBytes+at*width)); err != nil {
			return 0, err
		}
		lo = hi
	}
	return count, nil
}

// writeAll writes parts one after the other, from byte at on.
func writeAll(f *os.File, parts [][]byte, at int64) error {
	w := io.NewOffsetWriter(f, at)
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// finish sums the tokens, writes the header and gives the file its name, in this
// order, so that a file of that name is whole, also after a power cut.
func (b *builder) finish(f *os.File, path string, count int64) error {
	size := count * int64(b.tokens.width())
	crc := crc32.New(castagnoli)
	r, err := os.Open(f.Name())
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(crc, io.NewSectionReader(r, tokenHeaderBytes, size))
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("%s: wrote %d bytes of tokens, read back %d", f.Name(), size, n)
	}
	h := tokenHeader{width: uint32(b.tokens.width()), ids: uint32(b.tokens.ids()),
		files: uint32(len(b.docs)), count: uint64(count), key: b.key, crc: crc.Sum32()}
	if _, err := f.WriteAt(h.encode(), 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if d, err := os.Open(filepath.Dir(path)); err == nil { // the name, too, must last
		d.Sync()
		d.Close()
	}
	return nil
}
