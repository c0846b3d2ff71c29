package text

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"lockstep/spmd/telemetry"
)

// Options says which data to read, and how.
type Options struct {
	Inputs  []Place
	Tokens  Tokenizer
	Cache   string // folder, "" for the user's own
	Threads int    // goroutines of this rank
	Log     zerolog.Logger
	// Progress begins to report work on total bytes. It may be nil.
	Progress func(what string, total int64) *telemetry.Work
}

// roundBytes is how much text each rank tokenises before it writes.
const roundBytes = 64 << 20

// Open returns the tokens of the inputs, from the cache or made by all ranks of g together.
// Collective over g.
func Open(g Group, o Options) (*File, error) {
	b := &builder{Group: g, Options: o}
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
	f, err := OpenFile(path, o.Tokens, b.key)
	if _, err = g.Gather(nil, err); err != nil {
		return nil, err
	}
	return f, nil
}

// builder makes one token file. The first rank of the group decides; all ranks work.
type builder struct {
	Group
	Options
	files []Source
	docs  []document
	key   [sha256.Size]byte
	start time.Time
}

// fileName returns the token file's name in its folder.
func (b *builder) fileName() string {
	return b.Tokens.Name() + "-" + hex.EncodeToString(b.key[:16]) + ".tok"
}

// ownName returns this user's name for the token file in a folder where another user has a file of
// the first name.
func (b *builder) ownName() string {
	return strings.TrimSuffix(b.fileName(), ".tok") + fmt.Sprintf("-user%d.tok", os.Getuid())
}

// nameIn returns the name for a new token file in a folder.
func (b *builder) nameIn(dir string) string {
	if st, err := os.Lstat(filepath.Join(dir, b.fileName())); err == nil && ownerOf(st) != os.Getuid() {
		return b.ownName()
	}
	return b.fileName()
}

// list finds the files, hashes them and computes the key. All ranks then hold the same list.
func (b *builder) list() error {
	b.start = time.Now()
	var listed struct {
		Files   []Source
		Skipped Skips
	}
	var msg []byte
	var err error
	if b.Rank == 0 {
		if listed.Files, listed.Skipped, err = List(b.Inputs); err == nil {
			msg, err = encodeGob(listed)
		}
	}
	all, err := b.Gather(msg, err)
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
	lo, hi := share(before, b.Rank, b.Size)
	sums := make([]byte, (hi-lo)*len(pieceSum{}))
	err = parallel(b.Threads, hi-lo, func(i int) error {
		s, err := hashPiece(b.files[todo[lo+i].file], todo[lo+i].index)
		copy(sums[i*len(s):], s[:])
		return err
	})
	all, err = b.Gather(sums, err)
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
	b.key = contentKey(b.Tokens, b.docs)
	if len(b.docs) == 0 {
		return BadInput("--data: no text files found (skipped: %s)", listed.Skipped)
	}
	var size int64
	for _, d := range b.docs {
		size += b.files[d.file].Size
	}
	b.Log.Info().Int("files", len(b.docs)).Int64("bytes", size).Stringer("skipped", listed.Skipped).
		Str("from", from(b.Inputs)).Int64("ms", time.Since(b.start).Milliseconds()).Msg("data")
	return nil
}

// from names the inputs for the log.
func from(inputs []Place) string {
	if n := len(inputs); n > 1 {
		return fmt.Sprintf("%s and %d more", inputs[0].Path, n-1)
	}
	return inputs[0].Path
}

// find returns the path of a good token file, or "".
func (b *builder) find() (string, error) {
	found := ""
	if b.Rank == 0 {
		dirs, _ := cacheDirs(b.Cache)
		for _, dir := range dirs {
			if !trusted(dir) {
				continue
			}
			if found = b.findIn(dir); found != "" {
				break
			}
		}
	}
	all, err := b.Gather([]byte(found), nil)
	if err != nil {
		return "", err
	}
	return string(all[0]), nil
}

// findIn returns the path of a good token file in a folder, or "".
func (b *builder) findIn(dir string) (found string) {
	for _, name := range []string{b.ownName(), b.fileName()} {
		path := filepath.Join(dir, name)
		f, err := OpenWhole(path, b.Tokens, b.key)
		if err == nil {
			found = path
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.Log.Warn().Err(err).Msg("the token file cannot be used and is made again")
		}
		if found != "" {
			break
		}
	}
	return found
}

// build makes the token file. All ranks tokenise their parts and write them into a temporary file,
// which then gets its header and its name.
//
// Others that make the same file meanwhile have temporary files of their own. The last one to
// rename wins, with the same contents.
func (b *builder) build() (path string, err error) {
	var f *os.File
	name := ""
	if b.Rank == 0 {
		if f, err = newTemp(b.Cache, b.fileName(), b.Log); err == nil {
			name = f.Name()
			path = filepath.Join(filepath.Dir(name), b.nameIn(filepath.Dir(name)))
			defer func() {
				f.Close()
				os.Remove(name) // gone already if all went well
			}()
		}
	}
	all, err := b.Gather([]byte(name), err)
	if err != nil {
		return "", err
	}
	if b.Rank != 0 {
		f, err = os.OpenFile(string(all[0]), os.O_WRONLY, 0)
		if err == nil {
			defer f.Close()
		}
	}
	if _, err = b.Gather(nil, err); err != nil {
		return "", err
	}
	count, err := b.encode(f)
	if err != nil {
		return "", err
	}
	if b.Rank == 0 {
		err = b.finish(f, path, count)
	}
	all, err = b.Gather([]byte(path), err)
	if err != nil {
		return "", err
	}
	b.Log.Info().Int64("tokens", count).Str("file", string(all[0])).Int64("ms", time.Since(b.start).Milliseconds()).
		Msg("tokenised")
	return string(all[0]), nil
}

// encode tokenises the documents into f and returns the number of tokens. It goes in rounds of a
// bounded amount of text: the place of a rank's tokens is known only when the ranks before it have
// counted theirs.
func (b *builder) encode(f *os.File) (count int64, err error) {
	order := make([]int, len(b.docs))
	for i, d := range b.docs {
		order[i] = d.file
	}
	todo, before := pieces(b.files, order)
	var bar *telemetry.Work
	if b.Progress != nil {
		bar = b.Progress("tokenising", before[len(todo)])
		defer bar.Done()
	}
	width := int64(b.Tokens.Width())
	for lo := 0; lo < len(todo); {
		hi := lo + 1
		for hi < len(todo) && before[hi+1]-before[lo] <= roundBytes*int64(b.Size) {
			hi++
		}
		first, last := share(before[lo:hi+1], b.Rank, b.Size)
		first, last = first+lo, last+lo
		out := make([][]byte, last-first)
		err := parallel(b.Threads, len(out), func(i int) error {
			p := todo[first+i]
			tokens, err := encodePiece(b.Tokens, b.files[p.file], p.index)
			out[i] = tokens
			bar.Add((before[first+i+1] - before[first+i]) * int64(b.Size)) // the others are as far
			return err
		})
		var mine int64
		for _, t := range out {
			mine += int64(len(t)) / width
		}
		all, err := b.Gather(binary.LittleEndian.AppendUint64(nil, uint64(mine)), err)
		if err != nil {
			return 0, err
		}
		at := count
		for r, m := range all {
			n := int64(binary.LittleEndian.Uint64(m))
			if r < b.Rank {
				at += n
			}
			count += n
		}
		if _, err := b.Gather(nil, writeAll(f, out, tokenHeaderBytes+at*width)); err != nil {
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

// finish sums the tokens, writes the header and gives the file its name, in this order. So a file
// of that name is whole, also after a power cut.
func (b *builder) finish(f *os.File, path string, count int64) error {
	size := count * int64(b.Tokens.Width())
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
	h := tokenHeader{width: uint32(b.Tokens.Width()), ids: uint32(b.Tokens.IDs()),
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

// encodeGob and decodeGob carry lists between ranks. JSON would change file names that
// are not UTF-8.
func encodeGob(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decodeGob(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }
