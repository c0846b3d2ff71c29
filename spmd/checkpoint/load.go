package checkpoint

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"lockstep/internal/ccall"
	"lockstep/internal/safetensors"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Load puts the newest checkpoint that every rank finds complete and undamaged into the items, and
// returns its step. The meta of its Save goes into *meta, unless meta is nil. The newest is the one
// that was saved last, whatever its step. Links are followed. Load skips damaged and incomplete
// checkpoints, and entries that only look like one, with a warning that names the file. Work on the
// items' buffers must have finished.
//
// A checkpoint may hold more arrays than the items. Load fails if it lacks an item, or has it with
// another type or number of elements, or if items overlap. It fails too if the folder has only
// damaged or apparent checkpoints. If there is none at all, the error is ErrNotFound, and the
// buffers are as they were.
//
// Collective over all ranks, blocking: all give the same items, in one order.
func (m *Manager) Load(meta any, items ...Item) (step int, err error) {
	defer m.enter(loadMeeting)()
	if err := m.wait(); err != nil {
		return 0, fmt.Errorf("%s: %w", ccall.At(), err)
	}
	if step, err = m.load(meta, items); err != nil {
		return 0, fmt.Errorf("%s: Load: %w", ccall.At(), err)
	}
	return step, nil
}

func (m *Manager) load(meta any, items []Item) (int, error) {
	into := make([]library.Operand, len(items))
	for i := range items {
		into[i] = items[i].memory
	}
	if err := m.agree(cmp.Or(m.checkItems(items), library.Apart("Load", into...))); err != nil {
		return 0, err
	}
	if err := m.checkEqual(items, 0, nil); err != nil {
		return 0, err
	}
	c := candidates{m: m, tried: map[string]int{}, bad: map[string]error{}}
	chunk := make([]byte, chunkBytes)
	for {
		var next string // rank 0 says which, or that there is none
		var err error
		if m.w.Rank() == 0 {
			next, err = c.next()
		}
		if err := m.agree(err); err != nil {
			return 0, err
		}
		said, err := m.op.Broadcast(m.w, []byte(next), 0)
		if err != nil {
			return 0, err
		}
		name := string(said)
		if name == "" {
			break
		}
		x, damage, err := m.tryLoad(filepath.Join(m.dir, name), chunk, items)
		if err != nil {
			return 0, err
		}
		if damage == nil {
			if meta != nil {
				if err := json.Unmarshal(x.Meta, meta); err != nil {
					return 0, fmt.Errorf("%s: meta: %w", filepath.Join(m.dir, name, indexName), err)
				}
			}
			return x.Step, nil
		}
		if m.w.Rank() == 0 {
			c.damaged(name, damage)
		}
	}
	if err := m.agree(c.why()); err != nil {
		return 0, fmt.Errorf("no checkpoint in %s can be used: %w", m.dir, err)
	}
	return 0, fmt.Errorf("%w in %s", ErrNotFound, m.dir)
}

// tryLoad loads one checkpoint, on all ranks or on none. damage is why this checkpoint cannot be
// used. err is a failure that another checkpoint would not avoid.
func (m *Manager) tryLoad(folder string, chunk []byte, items []Item) (x *index, damage, err error) {
	x, checksum, err := m.disk.readIndex(folder)
	if damage := m.agree(err); damage != nil {
		return nil, damage, nil
	}
	least, greatest, err := m.op.Range(m.w, int64(binary.LittleEndian.Uint64(checksum[:])))
	if err != nil {
		return nil, nil, err
	}
	if least != greatest {
		return nil, fmt.Errorf("%s is not the same on every rank", filepath.Join(folder, indexName)), nil
	}
	if damage := m.agree(m.disk.verify(x, folder, chunk, m.w.Rank(), m.w.Size())); damage != nil {
		return nil, damage, nil
	}
	if err := m.agree(x.match(folder, items)); err != nil {
		return nil, nil, err
	}
	// All is well. If it is not any more, the checkpoint before has to fill the buffers anew.
	if damage := m.agree(m.fill(x, folder, chunk, items)); damage != nil {
		return nil, damage, nil
	}
	for _, i := range items {
		if !i.replicated || i.total == 0 || m.w.Size() == 1 {
			continue
		}
		counts := make([]int, m.w.Size())
		for r := range counts {
			counts[r] = spmd.ShardOf(i.total, r, len(counts)).Len
		}
		if err := i.share(m.w.Comm(), counts); err != nil {
			return nil, nil, err
		}
	}
	return x, nil, nil
}

// match checks that a checkpoint has the items.
func (x *index) match(folder string, items []Item) error {
	for _, i := range items {
		k := slices.IndexFunc(x.Arrays, func(a array) bool { return a.Name == i.name })
		if k < 0 {
			return fmt.Errorf("%s has no array %q", folder, i.name)
		}
		if a := x.Arrays[k]; a.Type != typeNames[i.typ] || a.Len != i.total {
			return fmt.Errorf("%s has %q as %d %s, the program as %d %s", folder, i.name, a.Len, a.Type,
				i.total, typeNames[i.typ])
		}
	}
	return nil
}

// fill reads this rank's parts of the items from all files that have some of them.
func (m *Manager) fill(x *index, folder string, chunk []byte, items []Item) error {
	wanted := make([]*Item, len(x.Arrays))
	for n := range items {
		wanted[slices.IndexFunc(x.Arrays, func(a array) bool { return a.Name == items[n].name })] = &items[n]
	}
	piece := wordBytes(make([]uint64, chunkBytes/8))
	for f := range x.Files {
		if err := m.fillFrom(x, folder, &x.Files[f], chunk, piece, wanted); err != nil {
			return err
		}
	}
	return nil
}

// fillFrom reads one file's elements of the wanted arrays.
func (m *Manager) fillFrom(x *index, folder string, file *shardFile, chunk, piece []byte, wanted []*Item) error {
	var s *shard
	for _, p := range file.Parts {
		i := wanted[p.Array]
		if i == nil {
			continue
		}
		own := i.part(m.w.Rank(), m.w.Size())
		// Alike cut, or not at all, the two have their elements in one order.
		lo, hi := max(own.Off, p.Off), min(own.Off+own.Len, p.Off+p.Len)
		alike := own.Cut == p.Cut
		if alike && lo >= hi || own.Len == 0 {
			continue
		}
		if s == nil {
			var err error
			if s, err = m.disk.openShard(folder, file, chunk); err != nil {
				return err
			}
			defer s.f.Close()
			if err := s.header(x, file.Parts); err != nil {
				return err
			}
		}
		var err error
		if alike {
			err = s.fill(i, p, lo, hi, piece)
		} else {
			err = s.scatter(i, p, own)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill reads the elements [lo, hi) of an array from its part p, by pieces, into the buffer, which
// starts at element i.off.
func (s *shard) fill(i *Item, p part, lo, hi int, piece []byte) error {
	size := i.typ.Size()
	for lo < hi {
		k := min(hi-lo, len(piece)/size)
		b := piece[:k*size]
		if _, err := s.ReadAt(b, s.tensors[i.name].Off+int64(lo-p.Off)*int64(size)); err != nil {
			return err
		}
		if err := i.write(lo-i.off, b); err != nil {
			return fmt.Errorf("%q: %w", i.name, err)
		}
		lo += k
	}
	return nil
}

// shard reads the file of a rank. It returns nothing without the checksum of the index.
type shard struct {
	disk    disk
	path    string
	f       *os.File
	sum     *fileSum
	tensors map[string]safetensors.Tensor
	chunk   []byte // contents of
	at      int    // this chunk
}

// openShard opens a file of a checkpoint; chunk is memory for one chunk.
func (d disk) openShard(folder string, file *shardFile, chunk []byte) (*shard, error) {
	path := filepath.Join(folder, file.Name)
	f, size, err := d.openFile(path)
	if err != nil {
		return nil, err
	}
	if size != file.Bytes {
		f.Close()
		return nil, fmt.Errorf("%s: %d bytes, and %d were saved", path, size, file.Bytes)
	}
	return &shard{disk: d, path: path, f: f, sum: &file.fileSum, chunk: chunk, at: -1}, nil
}

// load reads a chunk and checks it.
func (s *shard) load(chunk int) error {
	if s.at == chunk {
		return nil
	}
	s.at = -1
	off := int64(chunk) * chunkBytes
	p := s.chunk[:min(chunkBytes, s.sum.Bytes-off)]
	if err := s.disk.Change("read", s.path, func() error { _, err := s.f.ReadAt(p, off); return err }); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	if got := crc32.Checksum(p, castagnoli); got != s.sum.CRC[chunk] {
		return fmt.Errorf("%s: bytes %d to %d are not those that were saved: CRC-32C %08x, should be %08x",
			s.path, off, off+int64(len(p)), got, s.sum.CRC[chunk])
	}
	s.at = chunk
	return nil
}

// ReadAt reads bytes that are inside the file.
func (s *shard) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if err := s.load(int(at / chunkBytes)); err != nil {
			return done, err
		}
		done += copy(p[done:], s.chunk[at%chunkBytes:min(chunkBytes, s.sum.Bytes-at/chunkBytes*chunkBytes)])
	}
	return done, nil
}

// header reads the file's header, which must hold the parts of the index and nothing else.
func (s *shard) header(x *index, parts []part) error {
	tensors, err := safetensors.Parse(s, s.sum.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.tensors = make(map[string]safetensors.Tensor, len(tensors))
	for _, t := range tensors {
		s.tensors[t.Name] = t
	}
	for _, p := range parts {
		a := x.Arrays[p.Array]
		t, ok := s.tensors[a.Name]
		if !ok || t.Type != a.Type || len(t.Shape) != 1 || t.Shape[0] != int64(p.Len) {
			return fmt.Errorf("%s: %q is %v %s, the index says %d %s", s.path, a.Name, t.Shape, t.Type, p.Len, a.Type)
		}
	}
	if len(tensors) != len(parts) {
		return fmt.Errorf("%s: %d tensors, the index says %d", s.path, len(tensors), len(parts))
	}
	return nil
}

// verify reads a checkpoint's files and checks them. Each of size ranks reads an equal part of all
// chunks.
func (d disk) verify(x *index, folder string, chunk []byte, rank, size int) error {
	all := 0
	for _, f := range x.Files {
		all += len(f.CRC)
	}
	part := spmd.ShardOf(all, rank, size)
	first := 0 // chunk of the file
	for i := range x.Files {
		f := &x.Files[i]
		lo, hi := max(part.Off-first, 0), min(part.Off+part.Len-first, len(f.CRC))
		first += len(f.CRC)
		if lo >= hi {
			continue
		}
		s, err := d.openShard(folder, f, chunk)
		if err != nil {
			return err
		}
		for c := lo; c < hi && err == nil; c++ {
			err = s.load(c)
		}
		if err == nil && lo == 0 {
			err = s.header(x, f.Parts)
		}
		s.f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
