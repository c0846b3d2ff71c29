package main

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
)

// A token file of llm.c is a header of 256 int32 and then count tokens of GPT-2, uint16,
// all little-endian. Source: llm.c, dev/data/data_common.py.
const (
	binMagic       = 20240520
	binVersion     = 1
	binHeaderBytes = 256 * 4
)

// isBin says whether an input is a token file of llm.c: one that is named and ends so.
func isBin(in input) bool { return in.From == named && filepath.Ext(in.Path) == ".bin" }

// binInputs says whether the inputs are token files of llm.c, and looks at their headers.
// They do not go together with texts.
func binInputs(inputs []input) (bool, error) {
	bins := 0
	for _, in := range inputs {
		if !isBin(in) {
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
		return false, badInput("--data: token files (.bin) and texts do not go together")
	}
	return bins > 0, nil
}

// openBin maps a token file of llm.c.
func openBin(path string) (*tokenFile, error) {
	f, st, err := openRegular(path)
	if err != nil {
		return nil, badInput("--data %s: %w", path, shortPath(err, path))
	}
	defer f.Close()
	head := make([]byte, binHeaderBytes)
	if _, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, badInput("--data %s: %w", path, err)
	}
	count, err := binHeader(head, st.Size())
	if err != nil {
		return nil, badInput("--data %s: %w", path, err)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, badInput("--data %s: mmap: %w", path, err)
	}
	return &tokenFile{path, tokenHeader{width: 2, ids: gpt2End + 1, count: uint64(count)}, mem, mem[binHeaderBytes:]}, nil
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
		return 0, fmt.Errorf("its header says %d tokens of 2 bytes, and %d bytes follow it", field(2), size-binHeaderBytes)
	case size > math.MaxInt:
		return 0, fmt.Errorf("%d bytes are too many to map on this machine", size)
	}
	return field(2), nil
}

// openBins returns the tokens of llm.c's files, one after the other. All are read once: the
// key is of their contents, and no token is outside the vocabulary. Collective over g.
func openBins(g group, o dataOptions) (tokenData, error) {
	begin := time.Now()
	j, err := mapBins(o.inputs)
	if _, err = g.gather(nil, err); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	var files []source
	var order []int
	for i, f := range j.parts {
		files, order = append(files, source{Path: f.path, Size: int64(len(f.body))}), append(order, i)
	}
	todo, before := pieces(files, order)
	lo, hi := share(before, g.rank, g.size)
	var bar *meter
	if o.progress != nil {
		bar = o.progress("reading", before[len(todo)])
		defer bar.finish()
	}
	sums := make([]byte, (hi-lo)*sha256.Size)
	err = parallel(o.threads, hi-lo, func(i int) error {
		p := todo[lo+i]
		f, from := j.parts[p.file], p.index*pieceBytes
		bar.add((before[lo+i+1] - before[lo+i]) * int64(g.size)) // the others are as far
		return f.guard(func() error {
			b := f.body[from:min(from+pieceBytes, len(f.body))]
			sum := sha256.Sum256(b)
			copy(sums[i*sha256.Size:], sum[:])
			for k := 0; k < len(b); k += 2 {
				if id := binary.LittleEndian.Uint16(b[k:]); id > gpt2End {
					return badInput("--data %s: token %d at place %d is outside GPT-2's vocabulary of %d", f.path, id, (from+k)/2, gpt2End+1)
				}
			}
			return nil
		})
	})
	all, err := g.gather(sums, err)
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	h := sha256.New()
	fmt.Fprintf(h, "lockstep llm.c tokens 1\n%d\n", len(j.parts))
	for _, f := range j.parts {
		fmt.Fprintln(h, f.len())
	}
	h.Write(bytes.Join(all, nil))
	j.sum = h.Sum(nil)
	o.log.Info().Int("files", len(j.parts)).Int("tokens", j.len()).Str("from", from(o.inputs)).Int64("ms", time.Since(begin).Milliseconds()).Msg("data")
	return j, nil
}

func mapBins(inputs []input) (*joined, error) {
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

// tokenData is tokens to learn from.
type tokenData interface {
	// len is the number of tokens.
	len() int
	// read copies tokens [at, at+len(dst)) to dst.
	read(dst []int32, at int)
	// guard calls fn, which reads; see tokenFile.
	guard(fn func() error) error
	// key is the same for equal contents only.
	key() []byte
	Close() error
}

func (f *tokenFile) key() []byte { return f.header.key[:] }

// joined is token files one after the other.
type joined struct {
	parts []*tokenFile
	ends  []int // in tokens from the beginning
	sum   []byte
}

// add puts a file at the end.
func (j *joined) add(f *tokenFile) {
	j.parts, j.ends = append(j.parts, f), append(j.ends, j.len()+f.len())
}

func (j *joined) len() int {
	if len(j.ends) == 0 {
		return 0
	}
	return j.ends[len(j.ends)-1]
}

func (j *joined) key() []byte { return j.sum }

func (j *joined) read(dst []int32, at int) {
	begin := 0
	for i, f := range j.parts {
		if at < j.ends[i] && len(dst) > 0 {
			n := min(len(dst), j.ends[i]-at)
			f.read(dst[:n], at-begin)
			dst, at = dst[n:], at+n
		}
		begin = j.ends[i]
	}
	if len(dst) > 0 {
		panic(fmt.Sprintf("token %d of %d", at, j.len()))
	}
}

func (j *joined) guard(fn func() error) error {
	for _, f := range j.parts {
		inner := fn
		fn = func() error { return f.guard(inner) }
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

// withVal is tokens to learn from, and behind them tokens to validate on.
type withVal struct{ train, val tokenData }

func (d withVal) len() int { return d.train.len() + d.val.len() }

func (d withVal) read(dst []int32, at int) {
	if n := d.train.len(); at >= n {
		d.val.read(dst, at-n)
	} else {
		d.train.read(dst, at)
	}
}

func (d withVal) guard(fn func() error) error {
	return d.train.guard(func() error { return d.val.guard(fn) })
}

func (d withVal) key() []byte {
	sum := sha256.Sum256(append(append([]byte("lockstep validation\n"), d.train.key()...), d.val.key()...))
	return sum[:]
}

func (d withVal) Close() error { return errors.Join(d.train.Close(), d.val.Close()) }

// aboutVal makes an error about --data one about --val-data.
func aboutVal(err error) error {
	if err == nil || !errors.As(err, new(inputError)) {
		return err
	}
	return asInput(errors.New(strings.Replace(err.Error(), "--data", "--val-data", 1)))
}
