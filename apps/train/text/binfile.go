package text

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lockstep/internal/runfiles"
	"lockstep/spmd/telemetry"
)

// A token file of llm.c is a header of 256 int32 and then count tokens of GPT-2, uint16, all
// little-endian. Source: llm.c, dev/data/data_common.py.
const (
	binMagic       = 20240520
	binVersion     = 1
	binHeaderBytes = 256 * 4
)

// IsBin reports whether an input is a token file of llm.c: one that the user names and that ends in
// .bin.
func IsBin(in Place) bool { return in.From == Named && filepath.Ext(in.Path) == ".bin" }

// BinInputs reports whether the inputs are token files of llm.c, and reads their headers. It
// refuses a mixture with texts.
func BinInputs(inputs []Place) (bool, error) {
	bins := 0
	for _, in := range inputs {
		if !IsBin(in) {
			continue
		}
		bins++
		f, err := openBin(in.Path)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return false, err
		}
	}
	if bins > 0 && bins < len(inputs) {
		return false, BadInput("--data: token files (.bin) and texts do not go together")
	}
	return bins > 0, nil
}

// openBin maps a token file of llm.c.
func openBin(path string) (*File, error) {
	f, st, err := runfiles.OpenRegular(path)
	if err != nil {
		return nil, BadInput("--data %s: %w", path, runfiles.ShortPath(err, path))
	}
	defer f.Close()
	head := make([]byte, binHeaderBytes)
	if _, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, BadInput("--data %s: %w", path, err)
	}
	count, err := binHeader(head, st.Size())
	if err != nil {
		return nil, BadInput("--data %s: %w", path, err)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, BadInput("--data %s: mmap: %w", path, err)
	}
	return &File{path, tokenHeader{width: 2, ids: GPT2End + 1, count: uint64(count)}, mem, mem[binHeaderBytes:]}, nil
}

// binHeader returns the number of tokens in a file of size bytes that begins with b.
func binHeader(b []byte, size int64) (int, error) {
	field := func(i int) int { return int(int32(binary.LittleEndian.Uint32(b[4*i:]))) }
	switch {
	case size < binHeaderBytes:
		return 0, fmt.Errorf("%d bytes are no token file of llm.c, whose header has %d", size, binHeaderBytes)
	case field(0) != binMagic:
		return 0, fmt.Errorf("not a token file of llm.c: it begins with %d, want %d", field(0), binMagic)
	case field(1) != binVersion:
		return 0, fmt.Errorf("version %d of llm.c's token files, want %d", field(1), binVersion)
	case field(2) <= 0:
		return 0, fmt.Errorf("its header says %d tokens", field(2))
	case size-binHeaderBytes != 2*int64(field(2)):
		return 0, fmt.Errorf("its header says %d tokens of 2 bytes, and %d bytes follow it",
			field(2), size-binHeaderBytes)
	case size > math.MaxInt:
		return 0, fmt.Errorf("%d bytes are too many to map on this machine", size)
	}
	return field(2), nil
}

// WriteBin writes GPT-2's tokens as a file of llm.c. It passes the number of bytes to
// wrote as they go.
func WriteBin(to io.Writer, data Data, wrote func(bytes int64)) error {
	const most = 1 << 20 // tokens at a time
	if data.Len() > math.MaxInt32 {
		return fmt.Errorf("%d tokens: a file of llm.c holds up to %d", data.Len(), math.MaxInt32)
	}
	b := make([]byte, binHeaderBytes)
	for i, v := range []uint32{binMagic, binVersion, uint32(data.Len())} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	if _, err := to.Write(b); err != nil {
		return err
	}
	ids := make([]int32, most)
	for at := 0; at < data.Len(); at += len(ids) {
		ids = ids[:min(most, data.Len()-at)]
		data.Read(ids, at)
		b = b[:0]
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint16(b, uint16(id))
		}
		if _, err := to.Write(b); err != nil {
			return err
		}
		wrote(int64(len(b)))
	}
	return nil
}

// OpenBins returns the tokens of llm.c's files, one after the other. It reads all of them once,
// since the key is of their contents and no token may be outside the vocabulary. Collective over g.
func OpenBins(g Group, o Options) (Data, error) {
	begin := time.Now()
	j, err := mapBins(o.Inputs)
	if _, err = g.Gather(nil, err); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	var files []Source
	var order []int
	for i, f := range j.parts {
		files, order = append(files, Source{Path: f.path, Size: int64(len(f.body))}), append(order, i)
	}
	todo, before := pieces(files, order)
	lo, hi := share(before, g.Rank, g.Size)
	var bar *telemetry.Work
	if o.Progress != nil {
		bar = o.Progress("reading", before[len(todo)])
		defer bar.Done()
	}
	sums := make([]byte, (hi-lo)*sha256.Size)
	err = parallel(o.Threads, hi-lo, func(i int) error {
		p := todo[lo+i]
		f, from := j.parts[p.file], p.index*pieceBytes
		bar.Add((before[lo+i+1] - before[lo+i]) * int64(g.Size)) // the others are as far
		return f.Guard(func() error {
			b := f.body[from:min(from+pieceBytes, len(f.body))]
			sum := sha256.Sum256(b)
			copy(sums[i*sha256.Size:], sum[:])
			for k := 0; k < len(b); k += 2 {
				if id := binary.LittleEndian.Uint16(b[k:]); id > GPT2End {
					return BadInput("--data %s: token %d at place %d is outside GPT-2's vocabulary of %d",
						f.path, id, (from+k)/2, GPT2End+1)
				}
			}
			return nil
		})
	})
	all, err := g.Gather(sums, err)
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	h := sha256.New()
	fmt.Fprintf(h, "lockstep llm.c tokens 1\n%d\n", len(j.parts))
	for _, f := range j.parts {
		fmt.Fprintln(h, f.Len())
	}
	h.Write(bytes.Join(all, nil))
	j.sum = h.Sum(nil)
	o.Log.Info().Int("files", len(j.parts)).Int("tokens", j.Len()).Str("from", from(o.Inputs)).
		Int64("ms", time.Since(begin).Milliseconds()).Msg("data")
	return j, nil
}

func mapBins(inputs []Place) (*joined, error) {
	j := &joined{}
	for _, in := range inputs {
		f, err := openBin(in.Path)
		if err != nil {
			return j, err
		}
		j.add(f)
	}
	return j, nil
}

// Data is tokens to learn from.
type Data interface {
	// Len returns the number of tokens.
	Len() int
	// Read copies tokens [at, at+len(dst)) to dst.
	Read(dst []int32, at int)
	// Guard calls fn, which reads. See File.
	Guard(fn func() error) error
	// Key is the same for equal contents only.
	Key() []byte
	Close() error
}

func (f *File) Key() []byte { return f.header.key[:] }

// joined is token files one after the other.
type joined struct {
	parts []*File
	ends  []int // in tokens from the beginning
	sum   []byte
}

// add puts a file at the end.
func (j *joined) add(f *File) {
	j.parts, j.ends = append(j.parts, f), append(j.ends, j.Len()+f.Len())
}

func (j *joined) Len() int {
	if len(j.ends) == 0 {
		return 0
	}
	return j.ends[len(j.ends)-1]
}

func (j *joined) Key() []byte { return j.sum }

func (j *joined) Read(dst []int32, at int) {
	begin := 0
	for i, f := range j.parts {
		if at < j.ends[i] && len(dst) > 0 {
			n := min(len(dst), j.ends[i]-at)
			f.Read(dst[:n], at-begin)
			dst, at = dst[n:], at+n
		}
		begin = j.ends[i]
	}
	if len(dst) > 0 {
		panic(fmt.Sprintf("token %d of %d", at, j.Len()))
	}
}

func (j *joined) Guard(fn func() error) error {
	for _, f := range j.parts {
		inner := fn
		fn = func() error { return f.Guard(inner) }
	}
	return fn()
}

func (j *joined) Close() error {
	var errs []error
	for _, f := range j.parts {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// WithVal is tokens to learn from, followed by tokens to validate on.
type WithVal struct{ Train, Val Data }

func (d WithVal) Len() int { return d.Train.Len() + d.Val.Len() }

func (d WithVal) Read(dst []int32, at int) {
	if n := d.Train.Len(); at >= n {
		d.Val.Read(dst, at-n)
	} else {
		d.Train.Read(dst, at)
	}
}

func (d WithVal) Guard(fn func() error) error {
	return d.Train.Guard(func() error { return d.Val.Guard(fn) })
}

func (d WithVal) Key() []byte {
	sum := sha256.Sum256(append(append([]byte("lockstep validation\n"), d.Train.Key()...), d.Val.Key()...))
	return sum[:]
}

func (d WithVal) Close() error { return errors.Join(d.Train.Close(), d.Val.Close()) }

// AboutVal turns an error about --data into one about --val-data.
func AboutVal(err error) error {
	if err == nil || !errors.As(err, new(InputError)) {
		return err
	}
	return AsInput(errors.New(strings.Replace(err.Error(), "--data", "--val-data", 1)))
}
