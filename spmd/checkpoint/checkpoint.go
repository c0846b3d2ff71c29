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
	"lockstep/internal/safetensors"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
)

// ErrNotFound means that a folder holds no checkpoint, not even a damaged one.
var ErrNotFound = errors.New("no checkpoint")

// Config configures Open. The zero value is good.
type Config struct {
	// Keep is how many complete checkpoints are kept, the newest ones; 0 means 3.
	Keep int
	// OnTrial is for state that only later steps show to be good, as weights. A checkpoint then
	// counts to Keep from the next Save on, or from Proven. Until then one more is kept.
	OnTrial bool
	// Timeout is how long one step of the work on a file may take, as a sync; then the save fails.
	// Rank 0 also waits that long for the next file of another rank. Open waits that long for the
	// former run of the same Slurm job to end. 0 means 5 minutes. A rank that waits for files is
	// not missing from a collective.
	Timeout time.Duration
	// ReadOnly is for a program that only loads, also while another one saves. The folder must
	// exist. It is not locked, and Save fails.
	ReadOnly bool
	// Saved is called on rank 0 as soon as a checkpoint is complete on disk, by the goroutine that
	// has written it. It may be nil.
	Saved func(Info)
	// Written is called on rank 0 by the goroutine that writes, also while it waits for the files
	// of other ranks. It gets the bytes of rank 0's own part of a checkpoint: written so far, and
	// all. It may be nil.
	Written func(bytes, of int64)
}

// Info is a checkpoint that is complete on disk.
type Info struct {
	Step   int
	Folder string
	Bytes  int64         // of all ranks' files
	Took   time.Duration // since Save was called
}

// The calls in which the ranks meet.
var (
	openMeeting = own.NewMeeting("checkpoint.Open")
	saveMeeting = own.NewMeeting("Save")
	loadMeeting = own.NewMeeting("Load")
	waitMeeting = own.NewMeeting("Wait for a save")
)

// Manager saves the state of a program to a folder, and loads it on any number of ranks. One
// program at a time saves into a folder, which it locks. One goroutine uses a Manager.
//
// A checkpoint is a folder such as step-00000100. It holds a safetensors file of every rank, an
// index of the parts with checksums, and a file COMPLETE, which is written last. If a program ends
// before that, the checkpoint before is as it was. An error on one rank is returned on all ranks,
// so the program may go on.
type Manager struct {
	w       *spmd.World
	disk    disk
	op      own.Meeting // in which the ranks talk to each other
	dir     string
	cfg     Config
	session uint64   // makes the names of temporary folders unique
	saves   int      // begun
	stage   []uint64 // a copy of this rank's state while it is written
	saving  *saving
	late    *saving // failed since a step took too long, and its work may go on
	closed  bool

	// Fields of rank 0, for the save in progress or, without one, the caller:
	lock    *folderLock     // nil if the folder cannot be locked
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
	over    chan struct{} // closed when this rank's work has ended
	begun   time.Time
}

// Open opens a folder of checkpoints, and makes a missing one.
//
// The folder is locked until Close. Another program that opens it fails after ten seconds. Its
// error says which process of which host has the folder, and since when. Open takes over the lock
// of a killed program if it is certain that the program is gone: a process of this host, or a job
// that Slurm says has ended or has started anew. Otherwise the error says which file to remove.
//
// Collective over all ranks, blocking. It fails if the ranks do not see the same folder.
func Open(w *spmd.World, dir string, cfg Config) (*Manager, error) {
	if cfg.Keep == 0 {
		cfg.Keep = 3
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Minute
	}
	m := &Manager{w: w, disk: disk{own.FilesOf(w)}, cfg: cfg, damaged: make(map[string]bool)}
	defer m.enter(openMeeting)()
	err := m.open(dir)
	if err := m.agree(err); err != nil {
		return nil, fmt.Errorf("%s: checkpoint.Open: %w", ccall.At(), err)
	}
	session := make([]byte, 8)
	rand.Read(session) // never fails
	session, err = m.op.Broadcast(m.w, session, 0)
	if err != nil {
		return nil, err
	}
	m.session = binary.LittleEndian.Uint64(session)
	if cfg.ReadOnly {
		return m, nil
	}
	if err := m.lockAll(); err != nil {
		return nil, fmt.Errorf("%s: checkpoint.Open: %w", ccall.At(), err)
	}
	if err := m.checkShared(); err != nil {
		m.unlock()
		return nil, fmt.Errorf("%s: checkpoint.Open: %w", ccall.At(), err)
	}
	return m, nil
}

func (m *Manager) open(dir string) (err error) {
	if dir == "" || m.cfg.Keep < 0 || m.cfg.Timeout < 0 {
		return fmt.Errorf("folder %q, Keep %d, Timeout %v", dir, m.cfg.Keep, m.cfg.Timeout)
	}
	if m.dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if m.cfg.ReadOnly {
		info, err := os.Stat(m.dir)
		if err == nil && !info.IsDir() {
			err = &os.PathError{Op: "open", Path: m.dir, Err: syscall.ENOTDIR}
		}
		return err
	}
	return m.disk.Do("mkdir of "+m.dir, func() error { return os.MkdirAll(m.dir, 0o777) })
}

// checkShared checks that all ranks see the folder in which rank 0 can write. If rank 0 cannot
// write, checkpoints can still be loaded.
func (m *Manager) checkShared() error {
	if m.w.Size() == 1 {
		return nil
	}
	probe := filepath.Join(m.dir, fmt.Sprintf("%s%016x", probeName, m.session))
	made := int64(1)
	if m.w.Rank() == 0 {
		if _, err := m.disk.writeFile(probe); err != nil {
			made = 0
		} else {
			defer os.Remove(probe)
		}
	}
	if least, _, err := m.op.Range(m.w, made); err != nil || least == 0 {
		return err
	}
	// A network file system may take a moment to show it.
	err := m.disk.Do("look for "+probe, func() error {
		_, err := os.Stat(probe)
		for wait := time.Millisecond; err != nil && wait < 4*time.Second; wait *= 2 {
			time.Sleep(wait)
			_, err = os.Stat(probe)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s is not the same folder as rank 0's: checkpoints need one that all ranks share, "+
			"in a test that of spmdtest.TempDir: %w", m.dir, err)
	}
	return m.agree(err)
}

// Save saves items and meta as the checkpoint of a step. json.Marshal must take meta. A checkpoint
// of the same step is replaced once the new one is complete.
//
// Save waits for the save before, copies the state of this rank, and returns. The files are written
// in the background. The buffers must be valid for the host at the call, and may be changed after
// it.
//
// Collective over all ranks, blocking as said: all give the same step, meta and items, in one
// order. An error means that nothing is being saved. It may be the error of the save before. It
// then names the file and the cause: the disk is full, the folder is gone. The program may still
// try the next Save, which fails while the work of a save that took too long goes on.
func (m *Manager) Save(step int, meta any, items ...Item) error {
	defer m.enter(saveMeeting)()
	if err := m.wait(); err != nil {
		return fmt.Errorf("%s: %w", ccall.At(), err)
	}
	if err := m.save(step, meta, items); err != nil {
		return fmt.Errorf("%s: Save of step %d: %w", ccall.At(), step, err)
	}
	return nil
}

func (m *Manager) save(step int, meta any, items []Item) error {
	s := &saving{step: step, written: make(chan error, 1), done: make(chan error, 1),
		cancel: make(chan struct{}), over: make(chan struct{}), begun: time.Now()}
	text, err := json.Marshal(meta)
	if err == nil && step < 0 {
		err = errors.New("a negative step")
	}
	if err == nil && m.cfg.ReadOnly {
		err = errors.New("the folder was opened to load only")
	}
	if err == nil {
		err = m.checkItems(items)
	}
	if err == nil && m.writes() {
		err = fmt.Errorf("the work of the save of step %d, which took too long, goes on", m.late.step)
	}
	if err == nil && m.w.Rank() == 0 && m.lock == nil { // the disk was full, say
		err = m.tryLock()
	}
	if err := m.agree(err); err != nil {
		return err
	}
	if err := m.checkEqual(items, step, text); err != nil {
		return err
	}
	s.x = &index{Format: format, Step: step, Chunk: chunkBytes, Meta: text}
	if err := m.layOut(s.x, items); err != nil {
		return err
	}
	if err := m.agree(m.copy(s, items)); err != nil {
		return err
	}
	s.temp = filepath.Join(m.dir, fmt.Sprintf("%s.tmp-%016x", stepName(step), m.session+uint64(m.saves)))
	m.saves++
	m.saving = s
	go func() {
		defer close(s.over)
		if m.w.Rank() == 0 && m.saves == 1 {
			m.sweep(s)
		}
		if m.w.Rank() == 0 && m.cfg.OnTrial {
			m.prune(s)
		}
		err := m.writePart(s)
		s.written <- err
		if m.w.Rank() == 0 {
			if err == nil {
				err = m.finish(s)
			}
			s.done <- err
		}
	}()
	return nil
}

// checkEqual checks that the ranks speak of the same arrays, step and meta.
func (m *Manager) checkEqual(items []Item, step int, meta []byte) error {
	what := []string{fmt.Sprintf("step %d", step), fmt.Sprintf("%d arrays", len(items))}
	for _, i := range items {
		what = append(what, fmt.Sprintf("array %q of %d %v, replicated: %v", i.name, i.total, i.typ, i.replicated))
	}
	what = append(what, fmt.Sprintf("meta %s", meta))
	differ := func(text string) (bool, error) {
		h := fnv.New64a()
		io.WriteString(h, text)
		least, greatest, err := m.op.Range(m.w, int64(h.Sum64()))
		return least != greatest, err
	}
	if yes, err := differ(strings.Join(what, "\n")); err != nil || !yes {
		return err
	}
	for _, text := range what { // the first that differs; up to there the ranks have equally many
		if yes, err := differ(text); err != nil || yes {
			return cmp.Or(err, fmt.Errorf("the ranks do not say the same: rank %d has %.300s", m.w.Rank(), text))
		}
	}
	return nil
}

// layOut finds what every rank's file will hold: larger elements first, so that all are aligned.
func (m *Manager) layOut(x *index, items []Item) error {
	size, rank := m.w.Size(), m.w.Rank()
	const each = 5 // numbers
	var mine []byte
	for _, i := range items {
		p := i.part(rank, size)
		for _, v := range [each]int{p.Off, p.Len, p.First, p.Run, p.Stride} {
			mine = binary.LittleEndian.AppendUint64(mine, uint64(v))
		}
		x.Arrays = append(x.Arrays, array{i.name, typeNames[i.typ], i.total})
	}
	all, err := m.op.AllGather(m.w, mine)
	if err != nil {
		return err
	}
	parts := make([][]part, len(items))
	x.Files = make([]shardFile, size)
	for r := range x.Files {
		f := &x.Files[r]
		f.Name, f.Parts = shardName(r, size, "safetensors"), []part{}
		for n := range items {
			at := func(i int) int { return int(binary.LittleEndian.Uint64(all[r][8*(each*n+i):])) }
			if p := (part{n, at(0), at(1), Cut{at(2), at(3), at(4)}}); p.Len > 0 {
				f.Parts = append(f.Parts, p)
				parts[n] = append(parts[n], p)
			}
		}
		slices.SortStableFunc(f.Parts, func(p, q part) int {
			return items[q.Array].typ.Size() - items[p.Array].typ.Size()
		})
	}
	for n, a := range x.Arrays {
		if err := covers(a, parts[n]); err != nil {
			return err
		}
	}
	return nil
}

// copy takes the copy of this rank's state, and makes the header of its file.
func (m *Manager) copy(s *saving, items []Item) (err error) {
	rank, size := m.w.Rank(), m.w.Size()
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
	if words := (n + 7) / 8; len(m.stage) < words {
		m.stage = nil
		m.stage = make([]uint64, words)
	}
	s.data = wordBytes(m.stage)[:n]
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

// Wait returns when the last save is complete on disk: the files of all ranks, and the marker. A
// failed save leaves nothing, and the error names the rank, the file and the cause.
//
// Collective over all ranks, blocking.
func (m *Manager) Wait() error {
	defer m.enter(waitMeeting)()
	if err := m.wait(); err != nil {
		return fmt.Errorf("%s: %w", ccall.At(), err)
	}
	return nil
}

func (m *Manager) wait() error {
	s := m.saving
	if s == nil {
		return nil
	}
	m.saving = nil
	err := m.agree(m.await(s, s.written))
	if err != nil {
		close(s.cancel)
	}
	if m.w.Rank() == 0 {
		end := m.await(s, s.done)
		if err == nil {
			err = end
		}
		if err != nil {
			if left := m.disk.removeFolder(s.temp); left != nil {
				m.w.Log().Warn().Err(left).Msg("left by a save that failed")
			}
		}
	}
	if err := m.agree(err); err != nil {
		return fmt.Errorf("the checkpoint of step %d is not saved: %w", s.step, err)
	}
	return nil
}

// writes reports whether the work of a save that counts as failed goes on.
func (m *Manager) writes() bool {
	if m.late == nil {
		return false
	}
	select {
	case <-m.late.over:
		return false
	default:
		return true
	}
}

// Proven says that the state of the last save, which is complete, has been found good: see
// Config.OnTrial. Rank 0 removes the checkpoints beyond Keep. On other ranks it does nothing.
func (m *Manager) Proven() {
	if m.w.Rank() == 0 && m.saves > 0 && m.saving == nil && !m.writes() {
		m.prune(nil)
	}
}

// Close ends the use of the folder; another program can have it then. It waits until this rank has
// written its part of the last save, and on rank 0 until all of it is complete. It returns the
// error of that. A second Close does nothing.
//
// Close talks to no other rank, and so may be deferred. To know that a save is complete on all
// ranks, call Wait before.
func (m *Manager) Close() error {
	s := m.saving
	m.closed, m.saving, m.stage = true, nil, nil
	defer func() {
		if !m.writes() { // else until the process ends
			m.unlock()
		}
	}()
	if s == nil {
		return nil
	}
	defer m.enter(m.op)()
	err := m.await(s, s.written)
	if m.w.Rank() == 0 {
		if err = m.await(s, s.done); err != nil {
			err = errors.Join(err, m.disk.removeFolder(s.temp))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: Close: the checkpoint of step %d is not saved: %w", ccall.At(), s.step, err)
	}
	return nil
}

// agree returns an error on every rank if err is one on any: the rank's own, or the error of the
// first rank that has one. Collective.
func (m *Manager) agree(err error) error { return m.op.Agree(m.w, err) }

// enter says that this rank is in a call that works on files, until leave. on is the call that the
// ranks meet in.
func (m *Manager) enter(on own.Meeting) (leave func()) {
	m.op = on
	return m.disk.Enter(m.cfg.Timeout)
}

// await returns the result of a save's work. It fails if a step takes too long: the work may then
// never end.
func (m *Manager) await(s *saving, result <-chan error) error {
	tick := time.NewTicker(min(time.Second/4, m.cfg.Timeout/8+1))
	defer tick.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-tick.C:
		}
		if step := m.disk.Oldest(s.begun); step != nil && !strings.HasPrefix(step.What, othersFiles) &&
			time.Since(step.Since) > m.cfg.Timeout {
			m.stage, m.late = nil, s // it may be read all the same
			return fmt.Errorf("%s has not ended in %v", step.What, m.cfg.Timeout)
		}
	}
}
