package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/process"
	"lockstep/internal/testkit"
)

// deadProcess returns the number of a process that has ended.
func deadProcess(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	testkit.Must(t, cmd.Run())
	return cmd.Process.Pid
}

// inSlurm puts this process into a job of Slurm, with a stand-in for squeue that runs
// the given lines of shell.
func inSlurm(t *testing.T, job, restarts, squeue string) {
	t.Helper()
	bin := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(bin, "squeue"), []byte("#!/bin/sh\n"+squeue+"\n"), 0o777))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("SLURM_JOB_ID", job)
	t.Setenv("SLURM_CLUSTER_NAME", "big")
	t.Setenv("SLURM_RESTART_COUNT", restarts)
}

// A lock is taken over from owners that are gone for certain, and from no others.
func TestLockOwners(t *testing.T) {
	child := exec.Command("sleep", "600")
	testkit.Must(t, child.Start())
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	running := func(o *lockOwner) {
		o.PID = child.Process.Pid
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", o.PID))
		testkit.Must(t, err)
		o.Start, _ = process.StartTime(string(stat))
	}
	elsewhere := func(o *lockOwner) { o.Host, o.Boot, o.PID, o.Locked = "h2", "another", 77, true }
	slurm := func(job string, restarts int) func(*lockOwner) {
		return func(o *lockOwner) {
			elsewhere(o)
			o.Slurm, o.Cluster, o.Restarts = job, "big", restarts
		}
	}
	const unseen = "if it has ended, which cannot be seen from"
	for _, tc := range []struct {
		name   string
		owner  func(o *lockOwner)
		squeue string
		want   string // in the error; "" where the lock is taken over
	}{
		{"a process that has ended", func(o *lockOwner) { o.PID = deadProcess(t) }, "", ""},
		{"a process that runs", running, "", fmt.Sprintf("process %d, since 2026-", child.Process.Pid)},
		{"another process of that number", func(o *lockOwner) { running(o); o.Start++ }, "", ""},
		{"no process", func(o *lockOwner) { o.PID = 0 }, "", ""},
		{"on another host", elsewhere, "", unseen},
		{"of another container", func(o *lockOwner) { o.PIDs, o.Locked = "pid:[1]", true }, "", ""},
		{"of another container, without the kernel's lock", func(o *lockOwner) { o.PIDs = "pid:[1]" }, "", unseen},
		{"of an unknown kernel", func(o *lockOwner) { o.Boot = "" }, "", unseen},
		{"the run before of this job", slurm("12", 0), "exit 1", ""},
		{"this run of this job", slurm("12", 1), "echo RUNNING", unseen},
		{"a job that runs", slurm("13", 0), "echo RUNNING", unseen},
		{"a job that ends", slurm("13", 0), "echo COMPLETING", unseen},
		{"a job of several states", slurm("13", 0), "echo PENDING; echo RUNNING", unseen},
		{"a job that has ended", slurm("13", 0), "", ""},
		{"a job that has ended long ago", slurm("13", 0),
			"echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", ""},
		{"a job that was requeued", slurm("13", 0), "echo PENDING", ""},
		{"where Slurm does not answer", slurm("13", 0),
			"echo 'Unable to contact slurm controller' >&2; exit 1", unseen},
		{"a job of another cluster", func(o *lockOwner) { slurm("12", 0)(o); o.Cluster = "small" }, "", unseen},
		{"no number of a job", slurm("--help", 0), "", unseen},
		{"escapes", func(o *lockOwner) { elsewhere(o); o.Host = "h\x1b[2J\n" }, "", `on host h\x1b[2J\n,`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inSlurm(t, "12", "1", tc.squeue)
			o := thisOwner()
			o.Slurm, o.Cluster, o.Restarts = "", "", 0
			tc.owner(o)
			o.Since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			path := filepath.Join(t.TempDir(), lockName)
			text, err := json.Marshal(o)
			testkit.Must(t, err)
			testkit.Must(t, os.WriteFile(path, text, 0o666))
			me := thisOwner()
			f, before, err := takeLock(path, me)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !errors.As(err, new(*lockBusy)) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if unsure := strings.Contains(err.Error(),
					"remove "+path); unsure != (tc.name != "a process that runs") {
					t.Errorf("%v: says that %s may be removed: %v", err, path, unsure)
				}
				return
			}
			testkit.Must(t, err)
			defer f.Close()
			if before == nil || before.Session != o.Session {
				t.Errorf("it was %v", before)
			}
			if now, err := readOwner(path); err != nil || now.Session != me.Session || !now.Locked {
				t.Errorf("now it is %+v, %v", now, err)
			}
			if held, known := kernelLock(path); !held || !known {
				t.Errorf("the kernel's lock is held %v, known %v", held, known)
			}
			if got, _ := os.ReadDir(filepath.Dir(path)); len(got) != 1 {
				t.Errorf("%v is there", got)
			}
		})
	}
}

// A process that holds the kernel's lock lives, whatever else can be seen of it.
func TestLockHeldByKernel(t *testing.T) {
	inSlurm(t, "12", "1", "")
	path := filepath.Join(t.TempDir(), lockName)
	o := thisOwner()
	o.PID, o.Restarts = deadProcess(t), 0
	f, err := o.place(path)
	testkit.Must(t, err)
	_, _, err = takeLock(path, thisOwner())
	var busy *lockBusy
	if !errors.As(err, &busy) || busy.fate != lives || !busy.former || busy.patience(time.Hour) != time.Hour {
		t.Errorf("%v", err)
	}
	f.Close()
	f, _, err = takeLock(path, thisOwner())
	testkit.Must(t, err)
	f.Close()
}

// A lock file that says nothing is left alone.
func TestLockUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockName)
	for _, text := range []string{"", "{", "null", `{"session":"../../../tmp/x"}`,
		strings.Repeat("x", maxLock+1), "\x1b[2J"} {
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o666))
		_, _, err := takeLock(path, thisOwner())
		if err == nil || !strings.Contains(err.Error(), "remove "+path) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", text, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q has become %q, %v", text, got, err)
		}
	}
}

// Many take one lock; each gives it back or dies with it. No two have it at a time, and it is never
// lost.
func TestLockRace(t *testing.T) {
	t.Run("links", lockRace)
	t.Run("no links", func(t *testing.T) {
		hardLink = func(from, to string) error {
			return &os.LinkError{Op: "link", Old: from, New: to, Err: syscall.EPERM}
		}
		defer func() { hardLink = os.Link }()
		lockRace(t)
	})
}

func lockRace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockName)
	dead, each := deadProcess(t), testkit.Few(t, "turns at a lock", 5, 20)
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(g)))
			for mine := 0; mine < each; {
				me := thisOwner()
				me.PID = dead // it lives as long as it holds the kernel's lock
				f, _, err := takeLock(path, me)
				if errors.As(err, new(*lockBusy)) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d have the lock", n)
				}
				runtime.Gosched()
				if now, err := readOwner(path); err != nil || now.Session != me.Session {
					t.Errorf("the lock is taken away: %v, %v", now, err)
				}
				mine++
				turns.Add(1)
				holders.Add(-1)
				if rng.IntN(2) == 0 {
					f.Close() // as the kernel does for one that is killed
					continue
				}
				(&folderLock{path: path, owner: me, f: f, users: 1}).release()
			}
		})
	}
	wg.Wait()
	if int(turns.Load()) != 8*each {
		t.Errorf("%d turns", turns.Load())
	}
	f, _, err := takeLock(path, thisOwner())
	testkit.Must(t, err)
	f.Close()
	if got, _ := os.ReadDir(dir); len(got) != 1 {
		t.Errorf("%v is left", got)
	}
}

func FuzzLockOwner(f *testing.F) {
	text, err := json.Marshal(thisOwner())
	testkit.Must(f, err)
	f.Add(text)
	f.Add([]byte(`{"session":"0123456789abcdef","pid":-1,"start":-5,"slurm_job":"1 2"}`))
	path := filepath.Join(f.TempDir(), lockName)
	f.Fuzz(func(t *testing.T, text []byte) {
		testkit.Must(t, os.WriteFile(path, text, 0o666))
		o, err := readOwner(path)
		if err != nil {
			return
		}
		if s := o.String(); strings.ContainsAny(s, "\n\x1b\u009b") || !lockSession.MatchString(o.Session) {
			t.Errorf("%q", s)
		}
		_ = o.fateOf(path, thisOwner())
	})
}
