package checkpoint

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/process"
	"lockstep/internal/readable"
	"lockstep/spmd/internal/own"
)

// A folder of checkpoints is locked by a file that names its owner. It comes into being whole, by
// link(2), which is atomic also on network file systems. Its owner holds the kernel's lock on it,
// too, if the file system has such: that ends with the process.
const (
	lockName  = ".lock"
	maxLock   = 4 << 10
	lockPoll  = 100 * time.Millisecond // at first, and then ever less often
	lockRest  = 3 * time.Second        // at last
	lockGrace = 10 * time.Second       // for whoever is about to end
	askSlurm  = 3 * time.Second
	lockOld   = time.Hour // for files of a process that was killed while it took a lock
)

var lockSession = regexp.MustCompile(`^[0-9a-f]{16}$`)

// lockOwner is the contents of the file.
type lockOwner struct {
	Session  string        `json:"session"` // random: no two locks have the same
	Program  string        `json:"program"`
	Host     string        `json:"host"`
	Boot     string        `json:"boot"` // of the kernel that runs it, "" where unknown
	PIDs     string        `json:"pid_namespace"`
	PID      int           `json:"pid"`
	Start    time.Duration `json:"start"` // of the process, since the boot
	Slurm    string        `json:"slurm_job,omitempty"`
	Cluster  string        `json:"slurm_cluster,omitempty"`
	Restarts int           `json:"slurm_restarts,omitempty"`
	Locked   bool          `json:"locked"` // holds the kernel's lock
	Since    time.Time     `json:"since"`
}

// thisOwner describes this process.
func thisOwner() *lockOwner {
	o := &lockOwner{
		Program: filepath.Base(os.Args[0]), PID: os.Getpid(), Since: time.Now().Round(time.Second),
		Slurm: os.Getenv("SLURM_JOB_ID"), Cluster: os.Getenv("SLURM_CLUSTER_NAME"),
	}
	var session [8]byte
	rand.Read(session[:]) // never fails
	o.Session = fmt.Sprintf("%x", session)
	o.Host, _ = os.Hostname() // empty if it has none
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	o.Boot = strings.TrimSpace(string(boot))
	o.PIDs, _ = os.Readlink("/proc/self/ns/pid")
	stat, _ := os.ReadFile("/proc/self/stat")
	o.Start, _ = process.StartTime(string(stat))
	o.Restarts, _ = strconv.Atoi(os.Getenv("SLURM_RESTART_COUNT")) // 0 in the first run
	return o
}

// String names the owner. Its words come out of a file.
func (o *lockOwner) String() string {
	s := fmt.Sprintf("%s on host %s, process %d", o.Program, o.Host, o.PID)
	if o.Slurm != "" {
		s += ", Slurm job " + o.Slurm
	}
	return readable.Line(s + ", since " + o.Since.Format(time.DateTime))
}

func readOwner(path string) (*lockOwner, error) {
	text, err := read(path, maxLock)
	if err != nil {
		return nil, err
	}
	var o lockOwner
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !lockSession.MatchString(o.Session) {
		return nil, fmt.Errorf("%s: it does not say whose it is", path)
	}
	return &o, nil
}

// fate is the knowledge of an owner.
type fate int

const (
	lives   fate = iota
	unknown      // it cannot be seen from here
	gone         // for certain
)

// fateOf finds out whether the owner of the lock at path is still there.
func (o *lockOwner) fateOf(path string, me *lockOwner) fate {
	held, known := kernelLock(path)
	sameKernel := o.Boot != "" && o.Boot == me.Boot
	switch {
	case held:
		return lives
	case sameKernel && o.PIDs == me.PIDs:
		if o.processGone() {
			return gone
		}
		return lives
	case sameKernel && o.Locked && known: // in another container, perhaps of the past
		return gone
	case o.formerRunOf(me), o.Cluster == me.Cluster && slurmEnded(o.Slurm):
		return gone
	}
	return unknown
}

// formerRunOf reports whether o is this very job of Slurm, before it was requeued. Slurm starts it
// again when it has ended the run before.
func (o *lockOwner) formerRunOf(me *lockOwner) bool {
	return o.Slurm != "" && o.Slurm == me.Slurm && o.Cluster == me.Cluster && o.Restarts < me.Restarts
}

// processGone reports whether the owner, a process of this PID namespace, has ended.
func (o *lockOwner) processGone() bool {
	if o.PID <= 0 || errors.Is(syscall.Kill(o.PID, 0), syscall.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", o.PID))
	if err != nil {
		return false // another user's, hidden: it is there
	}
	stat := string(b)
	start, ok := process.StartTime(stat)
	state := strings.TrimSpace(stat[strings.LastIndexByte(stat, ')')+1:])
	return ok && start != o.Start || strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// kernelLock reports whether another process holds the kernel's lock on a file; known is whether
// the file system can tell.
func kernelLock(path string) (held, known bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, false
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, false
	}
	return l.Type != unix.F_UNLCK, true
}

// slurmEnded asks Slurm whether a job of this cluster has ended. It is false if that is not known.
func slurmEnded(job string) bool {
	if _, err := strconv.ParseUint(job, 10, 64); err != nil || os.Getenv("SLURM_CLUSTER_NAME") == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), askSlurm)
	defer cancel()
	cmd := exec.CommandContext(ctx, "squeue", "--noheader", "--format=%T", "--jobs="+job)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil { // one that ended long ago is not known any more
		return strings.Contains(said.String(), "Invalid job id")
	}
	for _, state := range strings.Fields(string(out)) {
		if state != "PENDING" { // requeued, and not begun again
			return false
		}
	}
	return true
}

// lockBusy means that another process has the lock.
type lockBusy struct {
	path   string
	owner  *lockOwner // nil if the file does not say
	fate   fate
	former bool  // it is the run before of this job
	cause  error // of no owner
}

// patience returns how long to wait for the owner.
func (b *lockBusy) patience(most time.Duration) time.Duration {
	if b.former {
		return most
	}
	return min(lockGrace, most)
}

func (b *lockBusy) Error() string {
	dir := filepath.Dir(b.path)
	if b.owner == nil {
		return fmt.Sprintf("%s is locked, and who has it cannot be read (%s): if no program saves there, remove %s",
			dir, readable.Line(b.cause.Error()), b.path)
	}
	s := fmt.Sprintf("%s is in use by %v: one program at a time saves into a folder", dir, b.owner)
	if b.fate == unknown {
		host, _ := os.Hostname()
		s += fmt.Sprintf("; if it has ended, which cannot be seen from %s, remove %s", host, b.path)
	}
	return s
}

// takeLock makes me the owner of the lock at path, if it has no owner or the owner is gone. It
// returns the open file, or the present owner. before is the owner that is gone.
func takeLock(path string, me *lockOwner) (f *os.File, before *lockOwner, err error) {
	was := errors.New("it changes all the time")
	for range 20 { // others may be quicker
		f, err := me.place(path)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return f, before, err
		}
		o, err := readOwner(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil { // without links, perhaps it is being written
			was = err
			time.Sleep(lockPoll / 10)
			continue
		}
		if fate := o.fateOf(path, me); fate != gone {
			return nil, nil, &lockBusy{path: path, owner: o, fate: fate, former: o.formerRunOf(me)}
		}
		if f, err = me.replace(path, o); f != nil || err != nil {
			return f, o, err
		}
	}
	return nil, nil, &lockBusy{path: path, fate: unknown, cause: was}
}

// replace takes the lock over from an owner that is gone. Only the process that has the lock with
// its own name alone may do so. It returns nil if another was quicker.
func (o *lockOwner) replace(path string, from *lockOwner) (*os.File, error) {
	name := path + "." + from.Session
	claim, _, err := takeLock(name, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		os.Remove(name) // a rest says nothing: no other owner has that name
		claim.Close()
	}()
	if now, err := readOwner(path); err != nil || now.Session != from.Session {
		return nil, nil
	}
	f, err := o.write(o.temp(path))
	if err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return f, nil
}

// temp returns a name of the owner's own beside path.
func (o *lockOwner) temp(path string) string { return path + "-" + o.Session }

// hardLink is os.Link; tests have it fail as on a file system without links.
var hardLink = os.Link

// place makes the file, whole. It fails if the file exists.
func (o *lockOwner) place(path string) (*os.File, error) {
	temp := o.temp(path)
	f, err := o.write(temp)
	if err != nil {
		return nil, err
	}
	err = hardLink(temp, path)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) ||
		errors.Is(err, syscall.EMLINK) {
		f.Close()
		os.Remove(temp)
		return o.write(path) // no links here
	}
	if errors.Is(err, fs.ErrExist) { // a network file system may have lost the first answer
		if now, rerr := readOwner(path); rerr == nil && now.Session == o.Session {
			err = nil
		}
	}
	os.Remove(temp)
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// write makes a file of this owner's, with the kernel's lock on it.
func (o *lockOwner) write(path string) (f *os.File, err error) {
	if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.Remove(path)
			f.Close()
			f = nil
		}
	}()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	o.Locked = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) == nil
	text, err := json.Marshal(o)
	if err == nil {
		_, err = f.Write(append(text, '\n'))
	}
	if err == nil {
		err = f.Sync()
	}
	return f, err
}

// folderLock is this process's lock of a folder, once however often it opens the folder.
type folderLock struct {
	path  string
	owner *lockOwner
	f     *os.File
	users int
}

var folderLocks struct {
	sync.Mutex
	held map[string]*folderLock // by path
}

// lockFolder locks a folder for this process. before is a former owner that is gone. It does not
// wait: the error is a lockBusy if another process has it.
func lockFolder(dir string) (l *folderLock, before *lockOwner, err error) {
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, lockName)
	folderLocks.Lock()
	defer folderLocks.Unlock()
	if l := folderLocks.held[path]; l != nil {
		if l.check() == nil {
			l.users++
			return l, nil, nil
		}
		delete(folderLocks.held, path) // the folder has been made anew
	}
	l = &folderLock{path: path, owner: thisOwner(), users: 1}
	if l.f, before, err = takeLock(path, l.owner); err != nil {
		return nil, nil, err
	}
	if folderLocks.held == nil {
		folderLocks.held = make(map[string]*folderLock)
	}
	folderLocks.held[path] = l
	l.sweep()
	return l, before, nil
}

// check returns why this process has the folder no more, or nil.
func (l *folderLock) check() error {
	now, err := readOwner(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is gone: the folder is this program's no more", l.path)
	}
	if err == nil && now.Session != l.owner.Session {
		return fmt.Errorf("%s has been taken over by %v", filepath.Dir(l.path), now)
	}
	return err
}

// release gives the folder back. Whatever is left of the lock, the next program sees that this one
// is gone.
func (l *folderLock) release() {
	folderLocks.Lock()
	defer folderLocks.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	if folderLocks.held[l.path] == l {
		delete(folderLocks.held, l.path)
	}
	defer l.f.Close()
	name := l.path + "." + l.owner.Session
	claim, _, err := takeLock(name, l.owner)
	if err != nil {
		return // somebody is taking it over, or the folder is gone
	}
	if l.check() == nil {
		os.Remove(l.path)
	}
	os.Remove(name)
	claim.Close()
}

// sweep removes the files of processes that were killed while they took the lock.
func (l *folderLock) sweep() {
	now, err := l.f.Stat()
	if err != nil {
		return
	}
	entries, _ := os.ReadDir(filepath.Dir(l.path)) // the next one may do it
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), lockName+".") && !strings.HasPrefix(e.Name(), lockName+"-") ||
			!e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && now.ModTime().Sub(info.ModTime()) > lockOld {
			os.Remove(filepath.Join(filepath.Dir(l.path), e.Name()))
		}
	}
}

// lockAll has rank 0 lock the folder. It waits for an owner that is about to end: some seconds, and
// until Timeout for the run before of the same job of Slurm. Collective.
func (m *Manager) lockAll() error {
	start, told := time.Now(), false
	for pause := lockPoll; ; pause = min(2*pause, lockRest) {
		var err error
		waits := int64(0)
		if m.w.Rank() == 0 {
			err = m.tryLock()
			var busy *lockBusy
			if errors.As(err, &busy) && time.Since(start) < busy.patience(m.cfg.Timeout) {
				if !told {
					m.w.Log().Info().Msg("waits a little: " + busy.Error())
				}
				err, waits, told = nil, 1, true
				// with the others in a collective, which must not be taken for a hang
				time.Sleep(min(pause, own.Timeout(m.w)/4))
			}
		}
		if err := m.agree(err); err != nil {
			return err
		}
		_, waiting, err := m.op.Range(m.w, waits)
		if err != nil || waiting == 0 {
			return err
		}
	}
}

// tryLock locks the folder for rank 0, whose call it is. Without a lock, as in a folder that cannot
// be written, the program may still load.
func (m *Manager) tryLock() error {
	var l *folderLock
	var before *lockOwner
	err := m.disk.Do("lock of "+m.dir, func() (err error) {
		l, before, err = lockFolder(m.dir)
		return err
	})
	switch {
	case errors.As(err, new(*lockBusy)):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		m.w.Log().Debug().Err(err).Msg("the folder of checkpoints is not locked")
	case err != nil:
		m.w.Log().Warn().Err(err).Msg("the folder of checkpoints is not locked")
	case before != nil:
		m.w.Log().Info().Str("owner", before.String()).Msg(
			"takes the folder of checkpoints over from a program that is gone")
	}
	m.lock = l
	return nil
}

// unlock gives the folder back, on rank 0.
func (m *Manager) unlock() {
	if m.lock != nil {
		m.lock.release()
		m.lock = nil
	}
}
