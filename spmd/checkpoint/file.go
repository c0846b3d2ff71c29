package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"lockstep/internal/elem"
	"lockstep/internal/safetensors"
	"lockstep/spmd/internal/own"
)

// A checkpoint is a folder step-00000100 with one safetensors file of every rank, and an index of
// their contents. A marker with the index's checksum is written last.
const (
	indexName  = "index.json"
	markerName = "COMPLETE"
	partial    = ".part" // of the name of a file that is being written
	replaced   = ".old"  // of the name of a checkpoint while another of its step takes its place
	probeName  = ".probe-"
	format     = "lockstep checkpoint 1"
	chunkBytes = 4 << 20 // of a file, that have a checksum of their own
	maxIndex   = 100_000_000
	maxMarker  = 1 << 10
)

var (
	folderName = regexp.MustCompile(`^step-(\d{8,19})(\.old|\.tmp-[0-9a-f]{16})?$`)
	fileName   = regexp.MustCompile(`^(COMPLETE|index\.json|shard-\d{5,}-of-\d{5,}\.(safetensors|json))(\.part)?$`)
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func stepName(step int) string { return fmt.Sprintf("step-%08d", step) }

func shardName(rank, size int, kind string) string {
	return fmt.Sprintf("shard-%05d-of-%05d.%s", rank, size, kind)
}

// typeNames is the format's names of the element types. It has no complex128: Save refuses that by
// the name.
var typeNames = [elem.Types]string{elem.Int8: "I8", elem.Uint8: "U8", elem.Int32: "I32",
	elem.Uint32: "U32", elem.Int64: "I64",
	elem.Uint64: "U64", elem.Float16: "F16", elem.BFloat16: "BF16", elem.Float32: "F32", elem.Float64: "F64",
	elem.Complex64: "C64", elem.Complex128: "complex128"}

// index is the contents of index.json.
type index struct {
	Format string          `json:"format"`
	Step   int             `json:"step"`
	Serial int             `json:"serial"` // grows with every checkpoint of the folder: the newest has the greatest
	Chunk  int             `json:"chunk_bytes"`
	Arrays []array         `json:"arrays"`
	Files  []shardFile     `json:"files"` // by rank
	Meta   json.RawMessage `json:"meta"`
}

// array is a global array.
type array struct {
	Name string `json:"name"`
	Type string `json:"dtype"`
	Len  int    `json:"elements"`
}

// shardFile is the file of one rank.
type shardFile struct {
	Name  string `json:"name"`
	Parts []part `json:"parts"`
	fileSum
}

// fileSum is the size of a file and the CRC-32C of every chunk of it.
type fileSum struct {
	Bytes int64    `json:"bytes"`
	CRC   []uint32 `json:"crc32c"`
}

// part is the elements [Off, Off+Len) of a cut of an array. A file has them as a tensor of the
// array's name.
type part struct {
	Array int `json:"array"`
	Off   int `json:"off"`
	Len   int `json:"len"`
	Cut
}

// parseIndex reads an index and checks that it makes sense.
func parseIndex(text []byte) (*index, error) {
	var x index
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&x); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("it goes on after its JSON object")
	}
	return &x, x.check()
}

func (x *index) check() error {
	switch {
	case x.Format != format:
		return fmt.Errorf("format %.40q, not %q", x.Format, format)
	case x.Step < 0 || x.Serial < 0:
		return fmt.Errorf("step %d, serial %d", x.Step, x.Serial)
	case x.Chunk != chunkBytes:
		return fmt.Errorf("chunks of %d bytes, not %d", x.Chunk, chunkBytes)
	case len(x.Files) == 0:
		return errors.New("no files")
	}
	seen := make(map[string]bool)
	for _, a := range x.Arrays {
		if err := safetensors.CheckName(a.Name); err != nil {
			return err
		}
		i := slices.Index(typeNames[:], a.Type)
		if i < 0 || a.Len < 0 || a.Len > int(^uint(0)>>1)/elem.Type(i).Size() || seen[a.Name] {
			return fmt.Errorf("array %q of %d %.20q, or there are two of it", a.Name, a.Len, a.Type)
		}
		seen[a.Name] = true
	}
	parts := make([][]part, len(x.Arrays))
	in := make([]int, len(x.Arrays)) // the last file that has a part of it, from 1
	for r, f := range x.Files {
		if f.Name != shardName(r, len(x.Files), "safetensors") {
			return fmt.Errorf("file %d is called %.60q", r, f.Name)
		}
		if err := f.check(); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		for i, p := range f.Parts {
			if p.Array < 0 || p.Array >= len(x.Arrays) || p.Len <= 0 || !p.inside(x.Arrays[p.Array].Len) ||
				in[p.Array] > r {
				return fmt.Errorf("%s: part %d is elements [%d, %d+%d) of array %d", f.Name, i, p.Off,
					p.Off, p.Len, p.Array)
			}
			in[p.Array] = r + 1
			parts[p.Array] = append(parts[p.Array], p)
		}
	}
	for i, a := range x.Arrays {
		if err := covers(a, parts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (f *fileSum) check() error {
	if f.Bytes < 1 || (f.Bytes-1)/chunkBytes+1 != int64(len(f.CRC)) {
		return fmt.Errorf("%d checksums of %d bytes", len(f.CRC), f.Bytes)
	}
	return nil
}

// marker returns the whole contents of the marker of an index.
func marker(index []byte) []byte {
	return fmt.Appendf(nil, "%s\n%d bytes of %s, SHA-256 %x\n", format, len(index), indexName, sha256.Sum256(index))
}

// disk does this rank's work on files of checkpoints. Each of its steps is known to a program that
// watches the job.
type disk struct{ *own.Files }

func (d disk) rename(from, to string) error {
	return d.Change("rename", to, func() error { return os.Rename(from, to) })
}

func (d disk) remove(path string) error {
	return d.Change("remove", path, func() error { return os.Remove(path) })
}

// syncFolder syncs the last renames and removals in a folder.
func (d disk) syncFolder(path string) error {
	return d.Change("sync", path, func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// writeFile puts a file in place when all of it is on disk. It does not sync its folder. After an
// error nothing is left of it.
func (d disk) writeFile(path string, pieces ...[]byte) (sum fileSum, err error) {
	return d.writeTold(path, func(int64) {}, pieces...)
}

// writeTold is writeFile that tells how many bytes it has written so far.
func (d disk) writeTold(path string, told func(int64), pieces ...[]byte) (sum fileSum, err error) {
	tmp := path + partial
	var f *os.File
	if err := d.Change("create", tmp, func() error { f, err = os.Create(tmp); return err }); err != nil {
		return sum, err
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = d.remove(tmp)
		}
	}()
	for _, data := range pieces {
		for len(data) > 0 {
			p := data[:min(len(data), chunkBytes)]
			data = data[len(p):]
			if err := d.Change("write", tmp, func() error { _, err := f.Write(p); return err }); err != nil {
				return sum, err
			}
			sum.add(p)
			told(sum.Bytes)
		}
	}
	if err := d.Change("sync", tmp, f.Sync); err != nil {
		return sum, err
	}
	if err := f.Close(); err != nil {
		return sum, err
	}
	return sum, d.rename(tmp, path)
}

// add takes in the next bytes of the file.
func (f *fileSum) add(p []byte) {
	for len(p) > 0 {
		at := f.Bytes % chunkBytes
		if at == 0 {
			f.CRC = append(f.CRC, 0)
		}
		k := min(int64(len(p)), chunkBytes-at)
		last := &f.CRC[len(f.CRC)-1]
		*last = crc32.Update(*last, castagnoli, p[:k])
		f.Bytes += k
		p = p[k:]
	}
}

// openFile opens a file of a checkpoint and returns its size.
func (d disk) openFile(path string) (f *os.File, size int64, err error) {
	err = d.Do("open of "+path, func() error {
		f, size, err = openRegular(path)
		return err
	})
	return f, size, err
}

func (d disk) readFile(path string, limit int64) (b []byte, err error) {
	err = d.Do("read of "+path, func() error {
		b, err = read(path, limit)
		return err
	})
	return b, err
}

func openRegular(path string) (f *os.File, size int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		return nil, 0, fmt.Errorf("%s: not a regular file", path)
	}
	f, err = os.Open(path)
	return f, info.Size(), err
}

// read reads a file of at most so many bytes.
func read(path string, limit int64) ([]byte, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%s: %d bytes, at most %d", path, size, limit)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// errUnfinished means that a checkpoint has no marker: its save did not finish.
var errUnfinished = errors.New("the save of this checkpoint did not finish")

// readIndex reads the marker and the index of a checkpoint. It returns the index and its checksum.
func (d disk) readIndex(folder string) (*index, [sha256.Size]byte, error) {
	var none [sha256.Size]byte
	mark, err := d.readFile(filepath.Join(folder, markerName), maxMarker)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none, fmt.Errorf("%w: %w", err, errUnfinished)
	}
	if err != nil {
		return nil, none, err
	}
	path := filepath.Join(folder, indexName)
	text, err := d.readFile(path, maxIndex)
	if err != nil {
		return nil, none, err
	}
	if !bytes.Equal(mark, marker(text)) {
		return nil, none, fmt.Errorf("%s: it is not the marker of %s, one of the two is damaged or from "+
			"another version",
			filepath.Join(folder, markerName), indexName)
	}
	x, err := parseIndex(text)
	if err != nil {
		return nil, none, fmt.Errorf("%s: %w", path, err)
	}
	return x, sha256.Sum256(text), nil
}

// savedFolder is a checkpoint on disk, or a part of one.
type savedFolder struct {
	name  string // of the folder
	step  int
	index *index // nil if it cannot be read
	err   error  // why
	temp  bool   // only a save in progress, or left by one that did not finish
	aside bool   // made by no save: it is never removed
}

// scan returns the checkpoints in dir, the newest first, and then those that have no good index.
func (d disk) scan(dir string) ([]savedFolder, error) {
	var entries []fs.DirEntry
	err := d.Do("scan of "+dir, func() (err error) { entries, err = os.ReadDir(dir); return err })
	if err != nil {
		return nil, err
	}
	var all []savedFolder
	for _, e := range entries {
		if s, ok := d.lookAt(dir, e); ok {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b savedFolder) int { return cmp.Compare(b.serial(), a.serial()) })
	return all, nil
}

// lookAt looks at an entry of a folder of checkpoints. ok says whether it is one, a part of one, or
// looks like one.
func (d disk) lookAt(dir string, e fs.DirEntry) (s savedFolder, ok bool) {
	folder := filepath.Join(dir, e.Name())
	link := e.Type()&fs.ModeSymlink != 0
	m := folderName.FindStringSubmatch(e.Name())
	s = savedFolder{name: e.Name()}
	if m != nil {
		s.step, s.temp = atoi(m[1]), m[2] != "" && m[2] != replaced
	}
	switch {
	case m == nil || stepName(s.step) != "step-"+m[1]: // renamed, or made by somebody else
		s.aside, s.err = true, fmt.Errorf("%s: a checkpoint, but not by its name: that of step 100 is %s",
			folder, stepName(100))
		return s, looksSaved.MatchString(s.name) && (link || e.IsDir()) && d.isThere(filepath.Join(folder, markerName))
	case link:
		if !d.isThere(folder + "/.") {
			s.aside, s.err = true, fmt.Errorf("%s: a link that leads to no folder", folder)
			return s, true
		}
	case !e.IsDir():
		return s, false
	}
	if s.temp {
		s.err = fmt.Errorf("%s: %w", folder, errUnfinished)
		return s, true
	}
	switch s.index, _, s.err = d.readIndex(folder); {
	case s.err == nil && s.index.Step != s.step:
		s.index, s.err = nil, fmt.Errorf("%s: step %d", filepath.Join(folder, indexName), s.index.Step)
	case link && errors.Is(s.err, errUnfinished): // no save makes a link
		s.aside, s.err = true, fmt.Errorf("%s: a link to a folder without a checkpoint", folder)
	}
	return s, true
}

// looksSaved begins the names that somebody may have given to a checkpoint.
var looksSaved = regexp.MustCompile(`^step-\d`)

// atoi is strconv.Atoi of digits that are few enough.
func atoi(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

func (d disk) isThere(path string) bool {
	return d.Do("look at "+path, func() error { _, err := os.Stat(path); return err }) == nil
}

func (s *savedFolder) serial() int {
	if s.index == nil {
		return -1
	}
	return s.index.Serial
}

// removeFolder removes a checkpoint, or the rest of a save, marker first: if the program ends in
// the middle, the remains are not complete. It does not touch a folder that holds anything else,
// nor the target of a link.
func (d disk) removeFolder(folder string) error {
	if info, err := os.Lstat(folder); err == nil && info.Mode().Type() == fs.ModeSymlink {
		return d.remove(folder)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		if !fileName.MatchString(e.Name()) || !e.Type().IsRegular() {
			return fmt.Errorf("%s is not removed, because %s in it is not of a checkpoint", folder, e.Name())
		}
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == markerName }) {
		if err := errors.Join(d.remove(filepath.Join(folder, markerName)), d.syncFolder(folder)); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := d.remove(filepath.Join(folder, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.remove(folder)
}
