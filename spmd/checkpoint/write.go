package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// writePart writes this rank's file and then its checksums, which say that the file is there.
func (m *Manager) writePart(s *saving) error {
	rank, size := m.w.Rank(), m.w.Size()
	err := m.disk.Change("mkdir", s.temp, func() error { return os.Mkdir(s.temp, 0o777) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	path := filepath.Join(s.temp, shardName(rank, size, "safetensors"))
	told := func(int64) {}
	if rank == 0 && m.cfg.Written != nil {
		told = func(n int64) { m.cfg.Written(n, s.bytes()) }
	}
	sum, err := m.disk.writeTold(path, told, s.header, s.data)
	if err != nil {
		return err
	}
	text, err := json.Marshal(sum)
	if err == nil {
		err = m.disk.syncFolder(s.temp)
	}
	if err == nil { // last: from then on rank 0 may give the folder its name
		_, err = m.disk.writeFile(filepath.Join(s.temp, shardName(rank, size, "json")), text)
	}
	if err != nil {
		_ = m.disk.remove(path)
	}
	return err
}

// bytes returns how long this rank's file is.
func (s *saving) bytes() int64 { return int64(len(s.header) + len(s.data)) }

// finish waits for the files of all ranks and makes them a checkpoint.
func (m *Manager) finish(s *saving) error {
	if err := m.awaitParts(s); err != nil {
		return err
	}
	if m.lock != nil { // a program that Slurm has taken for ended may go on for a while
		if err := m.disk.Do("look at "+m.lock.path, m.lock.check); err != nil {
			return err
		}
	}
	m.serial++
	s.x.Serial = m.serial
	if err := m.disk.publish(m.dir, s.temp, s.x); err != nil {
		return err
	}
	delete(m.damaged, stepName(s.step))
	if !m.cfg.OnTrial {
		m.prune(nil)
	}
	if m.cfg.Saved != nil {
		k := Info{Step: s.step, Folder: filepath.Join(m.dir, stepName(s.step)), Took: time.Since(s.begun)}
		for _, f := range s.x.Files {
			k.Bytes += f.Bytes
		}
		m.cfg.Saved(k)
	}
	return nil
}

// othersFiles begins the name of a step that has a limit of its own, awaitPart's.
const othersFiles = "wait for the files of other ranks in "

// awaitParts waits until the files of all ranks are in the temporary folder, and puts
// their checksums into the index.
func (m *Manager) awaitParts(s *saving) error {
	parts := s.x.Files
	left := len(parts)
	for left > 0 {
		err := m.disk.Do(othersFiles+s.temp, func() (err error) {
			left, err = m.awaitPart(s, left)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitPart waits until fewer than most files are missing, and returns how many are.
func (m *Manager) awaitPart(s *saving, most int) (int, error) {
	files := s.x.Files
	end := time.Now().Add(m.cfg.Timeout + max(m.cfg.Timeout/4, 2*time.Second)) // that rank may say more of it
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		entries, err := os.ReadDir(s.temp)
		if err != nil {
			return most, err
		}
		there := make(map[string]bool, len(entries))
		for _, e := range entries {
			there[e.Name()] = true
		}
		var missing []int
		for r := range files {
			name := shardName(r, len(files), "json")
			switch {
			case files[r].Bytes > 0:
			case !there[name]:
				missing = append(missing, r)
			default:
				if files[r].fileSum, err = m.disk.readPart(s.temp, name, files[r].Name); err != nil {
					return most, err
				}
			}
		}
		if len(missing) < most {
			return len(missing), nil
		}
		if time.Now().After(end) {
			return most, fmt.Errorf("%s: the files of ranks %v did not come for %v: is the folder on a "+
				"file system that all nodes share?",
				s.temp, missing, m.cfg.Timeout)
		}
		if m.cfg.Written != nil {
			m.cfg.Written(s.bytes(), s.bytes())
		}
		select {
		case <-s.cancel:
			return most, errors.New("another rank could not save")
		case <-time.After(wait):
		}
	}
}

// readPart reads a rank's checksums, and looks whether the file is as large as it says.
func (d disk) readPart(folder, name, shard string) (sum fileSum, err error) {
	path := filepath.Join(folder, name)
	text, err := d.readFile(path, maxIndex)
	if err != nil {
		return sum, err
	}
	if err = json.Unmarshal(text, &sum); err == nil {
		err = sum.check()
	}
	if err != nil {
		return sum, fmt.Errorf("%s: %w", path, err)
	}
	info, err := os.Stat(filepath.Join(folder, shard))
	if err == nil && info.Size() != sum.Bytes {
		err = fmt.Errorf("%s: %d bytes, and %d were saved", filepath.Join(folder, shard), info.Size(), sum.Bytes)
	}
	return sum, err
}

// publish makes the folder temp, which holds all shards, the checkpoint that x says.
func (d disk) publish(dir, temp string, x *index) error {
	text, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if len(text) > maxIndex {
		return fmt.Errorf("%s: an index of %d bytes, at most %d: fewer arrays or less in meta", temp,
			len(text), maxIndex)
	}
	if err := x.check(); err != nil {
		return err
	}
	if _, err := d.writeFile(filepath.Join(temp, indexName), text); err != nil {
		return err
	}
	for r := range x.Files {
		if err := d.remove(filepath.Join(temp, shardName(r, len(x.Files), "json"))); err != nil {
			return err
		}
	}
	if err := d.syncFolder(temp); err != nil {
		return err
	}
	folder := filepath.Join(dir, stepName(x.Step))
	back, err := d.makeRoom(folder)
	if err != nil {
		return errors.Join(err, back())
	}
	if err := d.rename(temp, folder); err != nil {
		return errors.Join(err, back())
	}
	err = d.syncFolder(dir)
	if err == nil {
		_, err = d.writeFile(filepath.Join(folder, markerName), marker(text))
	}
	if err == nil {
		err = d.syncFolder(folder)
	}
	if err != nil {
		return errors.Join(err, d.removeFolder(folder), back())
	}
	return nil
}

// makeRoom moves a checkpoint that is called folder out of the way. Its other name serves as well
// until the new one is complete; back undoes it.
func (d disk) makeRoom(folder string) (back func() error, err error) {
	old := folder + replaced
	back = func() error { return nil }
	if _, err := os.Lstat(folder); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return back, nil
		}
		return back, err
	}
	if _, _, err := d.readIndex(folder); err != nil {
		return back, d.removeFolder(folder) // one of the other name is better
	}
	if err := d.removeFolder(old); err != nil {
		return back, err
	}
	if err := d.rename(folder, old); err != nil {
		return back, err
	}
	return func() error { return d.rename(old, folder) }, nil
}

// sweep removes the rests of saves that did not finish, and learns the newest serial.
func (m *Manager) sweep(s *saving) {
	all, err := m.disk.scan(m.dir)
	if err != nil {
		return // the save that follows fails of it, too
	}
	for _, k := range all {
		m.serial = max(m.serial, k.serial())
		if k.temp && k.name != filepath.Base(s.temp) {
			m.drop(k)
		}
	}
	entries, _ := os.ReadDir(m.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), probeName) && e.Type().IsRegular() {
			_ = m.disk.remove(filepath.Join(m.dir, e.Name()))
		}
	}
}

// prune removes the checkpoints beyond the newest Keep, and those that never got complete. A
// damaged one does not count, and goes when there are Keep good ones. The folder of s, if there is
// one, stays.
func (m *Manager) prune(s *saving) {
	all, err := m.disk.scan(m.dir)
	if err != nil {
		m.w.Log().Warn().Err(err).Msg("old checkpoints are not removed")
		return
	}
	kept := make(map[int]bool)
	for _, k := range all {
		good := k.index != nil && !m.damaged[k.name]
		switch {
		case k.aside, s != nil && k.name == filepath.Base(s.temp):
		case good && len(kept) < m.cfg.Keep && !kept[k.step]:
			kept[k.step] = true
		case good, errors.Is(k.err, errUnfinished), len(kept) >= m.cfg.Keep:
			m.drop(k)
		}
	}
}

func (m *Manager) drop(k savedFolder) {
	if err := m.disk.removeFolder(filepath.Join(m.dir, k.name)); err != nil {
		m.w.Log().Warn().Err(err).Str("checkpoint", k.name).Msg("not removed")
	}
}
