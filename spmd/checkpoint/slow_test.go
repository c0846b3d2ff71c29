package checkpoint_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/spmdtest"
)

// A save that took too long may go on writing: no other begins beside it.
func TestLateSave(t *testing.T) {
	release := make(chan struct{})
	fault(t, func(op, path string) error {
		if op == "sync" && strings.Contains(path, "001.tmp-") && strings.Contains(path, "00001-of-00003.safetensors") {
			<-release
		}
		return nil
	})
	dir := t.TempDir()
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		c, err := checkpoint.Open(w, dir, checkpoint.Config{Timeout: 2 * time.Second})
		spmdtest.Must(t, err)
		spmdtest.Must(t, c.Save(1, nil))
		testkit.Refused(t, c.Wait(), "has not ended in 2s")
		const goes = "the work of the save of step 1, which took too long, goes on"
		err = c.Save(2, nil)
		if err == nil || !strings.Contains(err.Error(), goes) {
			t.Errorf("Save: %v", err)
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if w.Rank() == 0 {
			close(release)
		}
		for err != nil && strings.Contains(err.Error(), goes) {
			err = c.Save(2, nil)
		}
		spmdtest.Must(t, err)
		_ = c.Close() // it may take longer than 2 s
	})
}

// Ranks are goroutines of one process. The one whose file is slow says so, and no other.
func TestSlowFileOfRank(t *testing.T) {
	const slow = "shard-00002-of-00003.safetensors.part"
	dir := t.TempDir()
	reached := make(chan struct{})
	var seen sync.WaitGroup
	seen.Add(2)
	fault(t, func(op, path string) error {
		if op == "sync" && strings.HasSuffix(path, slow) {
			close(reached)
			seen.Wait()
		}
		return nil
	})
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		c, err := checkpoint.Open(w, dir, checkpoint.Config{})
		spmdtest.Must(t, err)
		spmdtest.Must(t, c.Save(1, nil))
		if w.Rank() != 0 { // which waits for the files of the others
			<-reached
			mine := filepath.Join(dir, "step-*.tmp-*", "shard-00001-of-00003.json")
			for found, _ := filepath.Glob(mine); w.Rank() == 1 && len(found) == 0; found, _ = filepath.Glob(mine) {
				time.Sleep(time.Millisecond)
			}
			s := fmt.Sprint(own.FilesOf(w).State(false))
			if strings.Contains(s, slow) != (w.Rank() == 2) {
				t.Errorf("rank %d is said to be in %s", w.Rank(), s)
			}
			seen.Done()
		}
		spmdtest.Must(t, c.Wait())
		spmdtest.Must(t, c.Close())
	})
}
