// Package checkpoint saves the state of a program to a folder, and loads it on any number of ranks.
//
//	m, err := checkpoint.Open(w, "run1", checkpoint.Config{})
//	...
//	step, err := m.Load(&meta, checkpoint.Replicated("weights", weights))
//	...
//	err = m.Save(step, meta, checkpoint.Replicated("weights", weights))
package checkpoint

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/safetensors"
	"lockstep/spmd"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/files"
	"lockstep/spmd/internal/inside"
)

// ErrNotFound says that a folder holds no checkpoint, not even a damaged one.
var ErrNotFound = errors.New("no checkpoint")

// Config configures Open. The zero value is good.
type Config struct {
	// Keep is how many complete checkpoints are kept, the newest ones; 0 means 3.
	Keep int
	// Timeout is how long a step of the work on a file may take, as a sync, before the save
	// fails, and how long rank 0 waits for the next of the other ranks' files; 0 means
	// 5 minutes. A rank that waits for files is not missing from a collective. As long
	// Open waits for the run before of the same Slurm job to end.
	Timeout time.Duration
	// ReadOnly is for a program that loads only, also while another saves: the folder must
	// be there, it is not locked, and Save fails.
	ReadOnly bool
	// Saved, where set, is called on rank 0 as soon as a checkpoint is complete on disk,
	// by the goroutine that has written it.
	Saved func(Info)
}

// Info is a checkpoint that is complete on disk.
type Info struct {
	Step   int
	Folder string
	Bytes  int64         // of all ranks' files
	Took   time.Duration // since Save was called
}

// Manager saves the state of a program to a folder, and loads it on any number of
// ranks. One program at a time saves into a folder, which it locks; it is used by one goroutine.
//
// A checkpoint is a folder step-00000100 with a safetensors file of every rank, an
// index of the parts with checksums, and a file COMPLETE, which is written last: until
// then, and whenever the program ends in between, the checkpoint before is as it was.
// Every error that a rank meets is returned on all ranks, which makes it safe to go on.
type Manager struct {
	w       *spmd.World
	in      inside.Rank
	op      control.Call // on whose behalf the ranks talk to each other
	dir     string
	cfg     Config
	session uint64   // makes the names of temporary folders unique
	saves   int      // begun
	stage   []uint64 // a copy of this rank's state while it is written
	saving  *saving
	closed  bool

	// Of rank 0, for the save in progress or, where there is none, the caller:
	lock    *folderLock     // nil where the folder cannot be locked
	serial  int             // of the newest checkpoint
	damaged map[string]bool // folders that could not be loaded
}

// saving is a save in progress.
type saving struct {
	step    int
	temp    string // folder
	x       *index
	header  []byte
	data    []byte
	written chan error    // result of this rank's file
	done    chan error    // of all of it, on rank 0
	cancel  chan struct{} // closed when another rank has failed
	begun   time.Time
}

// Open opens a folder of checkpoints, and makes it where there is none.
//
// The folder is locked until Close: another program that opens it fails after ten
// seconds, with an error that says which process of which host has it since when. The lock
// of a program that was killed is taken over where it is certain that it is gone: a
// process of this host, a job that Slurm says has ended or has started anew. Where that
// cannot be seen, the error says which file to remove.
//
// Collective over all ranks, blocking. It fails when the ranks do not see the same
// folder.
func Open(w *spmd.World, dir string, cfg Config) (*Manager, error) {
	if cfg.Keep == 0 {
		cfg.Keep = 3
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Minute
	}
	c := &Manager{w: w, in: insideOf(w), cfg: cfg, damaged: make(map[string]bool)}
	defer c.enter(control.OpenCheckpoints)()
	err := c.open(dir)
	if err := c.agree(err); err != nil {
		return nil, fmt.Errorf("%s: OpenCheckpoints: %w", ccall.At(), err)
	}
	session := make([]byte, 8)
	rand.Read(session) // never fails
	session, err = c.in.Channel.Broadcast(c.op, session, 0)
	if err != nil {
		return nil, err
	}
	c.session = binary.LittleEndian.Uint64(session)
	if cfg.ReadOnly {
		return c, nil
	}
	if err := c.lockAll(); err != nil {
		return nil, fmt.Errorf("%s: OpenCheckpoints: %w", ccall.At(), err)
	}
	if err := c.checkShared(); err != nil {
		c.unlock()
		return nil, fmt.Errorf("%s: OpenCheckpoints: %w", ccall.At(), err)
	}
	return c, nil
}

func (c *Manager) open(dir string) (err error) {
	if dir == "" || c.cfg.Keep < 0 || c.cfg.Timeout < 0 {
		return fmt.Errorf("folder %q, Keep %d, Timeout %v", dir, c.cfg.Keep, c.cfg.Timeout)
	}
	if c.dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if c.cfg.ReadOnly {
		info, err := os.Stat(c.dir)
		if err == nil && !info.IsDir() {
			err = &os.PathError{Op: "open", Path: c.dir, Err: syscall.ENOTDIR}
		}
		return err
	}
	return files.Do("mkdir of "+c.dir, func() error { return os.MkdirAll(c.dir, 0o777) })
}

// checkShared checks that all ranks see the folder in which rank 0 can write; where it
// cannot, checkpoints can still be loaded.
func (c *Manager) checkShared() error {
	if c.w.Size() == 1 {
		return nil
	}
	probe := filepath.Join(c.dir, fmt.Sprintf("%s%016x", probeName, c.session))
	made := int64(1)
	if c.w.Rank() == 0 {
		if _, err := writeFile(probe); err != nil {
			made = 0
		} else {
			defer os.Remove(probe)
		}
	}
	if all, err := c.in.Channel.Range(c.op, made); err != nil || all.Lo == 0 {
		return err
	}
	// A network file system may take a moment to show it.
	err := files.Do("look for "+probe, func() error {
		_, err := os.Stat(probe)
		for wait := time.Millisecond; err != nil && wait < 4*time.Second; wait *= 2 {
			time.Sleep(wait)
			_, err = os.Stat(probe)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s is not the same folder as rank 0's: checkpoints need one that all nodes share: %w", c.dir, err)
	}
	return c.agree(err)
}

// Save saves items and meta, which json.Marshal must take, as the checkpoint of a step;
// one of the same step is replaced once the new one is complete. It waits for the
// save before, copies the state of this rank, and returns: the files are written in the
// background. The buffers must be valid for the host, and may be changed again.
//
// Collective over all ranks: all give the same step, meta and items, in one order. An
// error means that nothing is being saved. Of the save before it names the file and
// the cause: the disk is full, the folder is gone. The next Save may be tried all the same.
func (c *Manager) Save(step int, meta any, items ...Item) error {
	defer c.enter(control.Save)()
	if err := c.wait(); err != nil {
		return fmt.Errorf("%s: %w", ccall.At(), err)
	}
	if err := c.save(step, meta, items); err != nil {
		return fmt.Errorf("%s: Save of step %d: %w", ccall.At(), step, err)
	}
	return nil
}

func (c *Manager) save(step int, meta any, items []Item) error {
	s := &saving{step: step, written: make(chan error, 1), done: make(chan error, 1), cancel: make(chan struct{}), begun: time.Now()}
	text, err := json.Marshal(meta)
	if err == nil && step < 0 {
		err = errors.New("a negative step")
	}
	if err == nil && c.cfg.ReadOnly {
		err = errors.New("the folder was opened to load only")
	}
	if err == nil {
		err = c.checkItems(items)
	}
	if err == nil && c.w.Rank() == 0 && c.lock == nil { // the disk was full, say
		err = c.tryLock()
	}
	if err := c.agree(err); err != nil {
		return err
	}
	if err := c.checkEqual(items, step, text); err != nil {
		return err
	}
	s.x = &index{Format: format, Step: step, Chunk: chunkBytes, Meta: text}
	if err := c.layOut(s.x, items); err != nil {
		return err
	}
	if err := c.agree(c.copy(s, items)); err != nil {
		return err
	}
	s.temp = filepath.Join(c.dir, fmt.Sprintf("%s.tmp-%016x", stepName(step), c.session+uint64(c.saves)))
	c.saves++
	c.saving = s
	go func() {
		if c.w.Rank() == 0 && c.saves == 1 {
			c.sweep(s)
		}
		err := c.writePart(s)
		s.written <- err
		if c.w.Rank() == 0 {
			if err == nil {
				err = c.finish(s)
			}
			s.done <- err
		}
	}()
	return nil
}

// checkEqual checks that the ranks speak of the same arrays, step and meta.
func (c *Manager) checkEqual(items []Item, step int, meta []byte) error {
	what := []string{fmt.Sprintf("step %d", step), fmt.Sprintf("%d arrays", len(items))}
	for _, i := range items {
		what = append(what, fmt.Sprintf("array %q of %d %v, replicated: %v", i.name, i.total, i.typ, i.replicated))
	}
	what = append(what, fmt.Sprintf("meta %s", meta))
	differ := func(text string) (bool, error) {
		h := fnv.New64a()
		io.WriteString(h, text)
		all, err := c.in.Channel.Range(c.op, int64(h.Sum64()))
		return !all.One(), err
	}
	if yes, err := differ(strings.Join(what, "\n")); err != nil || !yes {
		return err
	}
	for _, text := range what { // which is the first that differs; up to there the ranks have equally many
		if yes, err := differ(text); err != nil || yes {
			return cmp.Or(err, fmt.Errorf("the ranks do not say the same: rank %d has %.300s", c.w.Rank(), text))
		}
	}
	return nil
}

// layOut finds what every rank's file will hold: larger elements first, so that all
// are aligned.
func (c *Manager) layOut(x *index, items []Item) error {
	size, rank := c.w.Size(), c.w.Rank()
	mine := make([]int64, 2*len(items)+1) // never empty
	for n, i := range items {
		p := i.part(rank, size)
		mine[2*n], mine[2*n+1] = int64(p.Off), int64(p.Len)
		x.Arrays = append(x.Arrays, array{i.name, typeNames[i.typ], i.total})
	}
	all := make([]int64, len(mine)*size)
	err := c.in.Channel.Exchange(c.op, func(m control.Comm) error {
		return m.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine[0]), len(mine), elem.Int64)
	})
	if err != nil {
		return err
	}
	parts := make([][]part, len(items))
	x.Files = make([]shardFile, size)
	for r := range x.Files {
		f := &x.Files[r]
		f.Name, f.Parts = shardName(r, size, "safetensors"), []part{}
		for n := range items {
			at := all[r*len(mine)+2*n:]
			if p := (part{n, int(at[0]), int(at[1])}); p.Len > 0 {
				f.Parts = append(f.Parts, p)
				parts[n] = append(parts[n], p)
			}
		}
		slices.SortStableFunc(f.Parts, func(p, q part) int { return items[q.Array].typ.Size() - items[p.Array].typ.Size() })
	}
	for n, a := range x.Arrays {
		if err := covers(a, parts[n]); err != nil {
			return err
		}
	}
	return nil
}

// copy takes the copy of this rank's state, and makes the header of its file.
func (c *Manager) copy(s *saving, items []Item) (err error) {
	rank, size := c.w.Rank(), c.w.Size()
	var tensors []safetensors.Tensor
	for _, p := range s.x.Files[rank].Parts {
		a := s.x.Arrays[p.Array]
		tensors = append(tensors, safetensors.Tensor{Name: a.Name, Type: a.Type, Shape: []int64{int64(p.Len)}})
	}
	if s.header, err = safetensors.Layout(tensors); err != nil {
		return err
	}
	n := 0
	for _, t := range tensors {
		n += int(t.Bytes)
	}
	if words := (n + 7) / 8; len(c.stage) < words {
		c.stage = nil
		c.stage = make([]uint64, words)
	}
	s.data = wordBytes(c.stage)[:n]
	at := 0
	for k, p := range s.x.Files[rank].Parts {
		i, from := &items[p.Array], 0
		if i.replicated {
			from = i.part(rank, size).Off
		}
		if err := i.read(s.data[at:at+int(tensors[k].Bytes)], from); err != nil {
			return fmt.Errorf("%q: %w", i.name, err)
		}
		at += int(tensors[k].Bytes)
	}
	return nil
}

// wordBytes returns the memory of words, which is aligned for every element type.
func wordBytes(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}

// Wait returns when the last save is complete on disk, the files of all ranks and the
// marker, or has failed; then nothing is left of it, and the error names the rank,
// the file and the cause.
//
// Collective over all ranks, blocking.
func (c *Manager) Wait() error {
	defer c.enter(control.WaitSave)()
	if err := c.wait(); err != nil {
		return fmt.Errorf("%s: %w", ccall.At(), err)
	}
	return nil
}

func (c *Manager) wait() error {
	s := c.saving
	if s == nil {
		return nil
	}
	c.saving = nil
	err := c.agree(c.await(s, s.written))
	if err != nil {
		close(s.cancel)
	}
	if c.w.Rank() == 0 {
		end := c.await(s, s.done)
		if err == nil {
			err = end
		}
		if err != nil {
			if left := removeFolder(s.temp); left != nil {
				c.w.Log.Warn().Err(left).Msg("left by a save that failed")
			}
		}
	}
	if err := c.agree(err); err != nil {
		return fmt.Errorf("the checkpoint of step %d is not saved: %w", s.step, err)
	}
	return nil
}

// Close waits until this rank has written its part of the last save, rank 0 until all
// of it is complete, and returns its error. Call Wait before to know that a save is
// complete: unlike Wait, Close talks to no other rank, and so may be deferred. Another
// program can have the folder then. A second Close does nothing.
func (c *Manager) Close() error {
	s := c.saving
	c.closed, c.saving, c.stage = true, nil, nil
	defer c.unlock() // when nothing is written any more
	if s == nil {
		return nil
	}
	defer c.enter(c.op)()
	err := c.await(s, s.written)
	if c.w.Rank() == 0 {
		if err = c.await(s, s.done); err != nil {
			err = errors.Join(err, removeFolder(s.temp))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: the checkpoint of step %d is not saved: %w", ccall.At(), s.step, err)
	}
	return nil
}

// agree returns an error on every rank when err is one on any: its own, or what the
// first rank that has one says. Collective.
func (c *Manager) agree(err error) error { return c.in.Channel.Agree(c.op, err) }

// enter says that this rank is in a call that works on files, until leave. on is the call that the ranks meet in.
func (c *Manager) enter(on control.Call) (leave func()) {
	c.op = on
	return c.in.Files.Enter(c.cfg.Timeout)
}

// await returns what the work of a save came to, or that a step of it takes too long: then it may go on for ever.
func (c *Manager) await(s *saving, result <-chan error) error {
	tick := time.NewTicker(min(time.Second/4, c.cfg.Timeout/8+1))
	defer tick.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-tick.C:
		}
		if step := files.Oldest(s.begun); step != nil && !strings.HasPrefix(step.What, othersFiles) && time.Since(step.Since) > c.cfg.Timeout {
			c.stage = nil // it may be read all the same
			return fmt.Errorf("%s has not ended in %v", step.What, c.cfg.Timeout)
		}
	}
}
