package mpirun

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testPrefix begins the names of variables that go with each test to the ranks of a shared job.
const testPrefix = "SPMDTEST_"

const (
	// failGrace is how long the other ranks may take to say how they end after one has failed.
	failGrace = 3 * time.Second
	// goneGrace is how long mpirun may take to say how a rank ended that has gone without a word.
	goneGrace = 10 * time.Second
)

// endGrace is how long the ranks of a job may take to end after its last test.
const endGrace = hang

// job is an mpirun whose ranks run one test after another.
type job struct {
	ranks   int
	place   string // see place
	dir     string
	cancel  context.CancelFunc // ends mpirun
	own     output
	to      []*json.Encoder // by rank
	answers chan answer     // Rank is -1-r where rank r has gone
	ended   chan struct{}   // closed when mpirun has ended with err
	err     error
	// the part of its end that is Open MPI's own, see Wait
	ofOpenMPI string
	tests     []string // that it has run
	busy      bool
	used      time.Time // last
}

// output collects the output of mpirun.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// place returns what a process takes from its parent and keeps: the working folder, and the
// environment without the variables that go with each test. Tests share a job if theirs are equal.
func place() string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, testPrefix) })
	slices.Sort(env)
	dir, err := os.Getwd()
	if err != nil {
		dir = err.Error()
	}
	return strings.Join(append(env, dir), "\x00")
}

// do calls fn in a thread that lives as long as the process. A child that asked for a signal at the
// death of its parent gets it when the thread that started it ends. Source: prctl(2),
// PR_SET_PDEATHSIG.
func do(fn func()) {
	done := make(chan struct{})
	starter() <- func() { fn(); close(done) }
	<-done
}

// Start starts a command of Command. The command's own Start would make mpirun end with status 1
// and without a word if the calling thread ends before it. A thread ends with a goroutine that has
// locked it for good.
func Start(cmd *exec.Cmd) (err error) {
	do(func() { err = cmd.Start() })
	return err
}

var starter = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fn := range c {
			fn()
		}
	}()
	return c
})

// start starts a job and waits until all ranks ask for work, as long as t may. On an error own is
// the output of mpirun and its ranks.
func start(t *testing.T, n int) (j *job, own string, err error) {
	ctx := Patience(t)
	dir, err := os.MkdirTemp("", "mpirun")
	if err != nil {
		return nil, "", err
	}
	j = &job{ranks: n, place: place(), dir: dir, to: make([]*json.Encoder, n), answers: make(chan answer, 3*n),
		ended: make(chan struct{})}
	listener, err := net.Listen("unix", filepath.Join(dir, "job"))
	if err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	defer listener.Close()
	life, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	cmd := Command(life, n, os.Args[0], rankArgs()...)
	cmd.Env = append(cmd.Env, envJob+"="+listener.Addr().String())
	cmd.Stdout, cmd.Stderr = &j.own, &j.own
	if err = Start(cmd); err != nil {
		cancel()
		return nil, "", errors.Join(fmt.Errorf(noLauncher, err), os.RemoveAll(dir))
	}
	go func() {
		j.ofOpenMPI, j.err = Wait(cmd, j.own.String)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // this kills whatever mpirun left in its group
		close(j.ended)
	}()
	go j.accept(listener)
	for range n {
		select {
		case <-j.answers:
			continue
		case <-j.ended:
			err = fmt.Errorf("the ranks ended before they asked for a test: %v", j.err)
		case <-ctx.Done():
			err = ctx.Err()
		}
		j.halt()
		j.remove()
		return nil, j.own.String(), err
	}
	return j, "", nil
}

// accept takes the connections of the ranks and passes on their words.
func (j *job) accept(listener net.Listener) {
	for range j.ranks {
		conn, err := listener.Accept()
		if err != nil {
			return // start has given up
		}
		go func() {
			defer conn.Close()
			in := json.NewDecoder(conn)
			var a answer
			if in.Decode(&a) != nil || a.Rank < 0 || a.Rank >= j.ranks {
				return
			}
			r := a.Rank
			j.to[r] = json.NewEncoder(conn)
			for j.answers <- a; in.Decode(&a) == nil; j.answers <- a {
			}
			j.answers <- answer{Rank: -1 - r}
		}()
	}
}

// halt ends the job at once.
func (j *job) halt() {
	j.cancel()
	<-j.ended
}

func (j *job) hasEnded() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

func (j *job) remove() { _ = os.RemoveAll(j.dir) } // a folder of temporary files

// tell gives an order to all ranks. The connection shows a rank that has gone.
func (j *job) tell(o order) {
	for _, to := range j.to {
		_ = to.Encode(o)
	}
}

// run runs one test. The job has ended then, unless it can run another test.
func (j *job) run(test string, limit time.Duration) outcome {
	o := outcome{before: j.tests, limit: limit}
	j.tests = append(j.tests, test)
	late := time.NewTimer(limit + reportGrace)
	defer late.Stop()
	said := len(j.own.String())
	j.tell(order{Test: test, Timeout: limit.String(), Env: testEnv()})
	var grace <-chan time.Time
	done := 0
	for over := false; done < j.ranks && !over; {
		select {
		case a := <-j.answers:
			switch {
			case a.Rank >= 0 && a.Mark == markPassed:
				o.passed++
			case a.Rank >= 0 && a.Mark == markSkipped:
				o.skipped++
			case grace == nil && a.Rank >= 0:
				grace = time.After(failGrace)
			case grace == nil:
				grace = time.After(goneGrace)
			}
			if a.Rank >= 0 {
				done++
			}
		case <-grace:
			over = true
		case <-j.ended:
			over, o.err = true, j.err
		case <-late.C:
			over, o.late = true, true
		}
	}
	o.out = make([]string, j.ranks)
	if o.passed == j.ranks {
		if testing.Verbose() {
			o.out = outputs(j.dir, j.ranks)
		}
		return o
	}
	if o.passed+o.skipped != j.ranks {
		j.halt()
		defer j.remove()
	}
	o.out, o.own = outputs(j.dir, j.ranks), j.own.String()[said:]
	return o
}

// testEnv returns the variables that go with a test.
func testEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return !strings.HasPrefix(kv, testPrefix) })
}

// finish ends an idle job as its ranks would end by themselves.
func (j *job) finish() error {
	defer j.remove()
	early := j.hasEnded()
	before := len(j.own.String())
	late, cancel := context.WithTimeout(context.Background(), endGrace)
	defer cancel()
	j.tell(order{})
	said := j.endings(late.Done())
	j.tell(order{})
	var err error
	select {
	case <-j.ended:
		own := j.own.String()[before:]
		silent := slices.Index(said, "")
		switch {
		case j.err == nil && early:
			err = errors.New("it ended before it was told to")
		case j.err == nil && silent >= 0:
			err = fmt.Errorf("rank %d did not say that it ended well", silent)
		case j.ofOpenMPI != "" && (!MissedEnd(own) || onlyMissedEnd(j.err, own)) &&
			!slices.ContainsFunc(said, func(s string) bool { return s != saidLeft }):
			if ownEnds.Add(1) == tries {
				err = fmt.Errorf("its end was Open MPI's own, %d times: %s: %w", tries, j.ofOpenMPI, j.err)
				break
			}
			fmt.Fprintf(os.Stderr, "Open MPI's own: %s; all %d ranks say that they came through MPI_Finalize, and "+
				"it ended with %v\n%s",
				j.ofOpenMPI, j.ranks, j.err, report(nil, own))
		default:
			err = j.err
		}
	case <-late.Done():
		err = fmt.Errorf("still there after %v", endGrace)
		j.halt()
	}
	if err != nil {
		err = fmt.Errorf("the job of %d ranks that ran %s did not end well: %w\n%s",
			j.ranks, list(j.tests), err, report(outputs(j.dir, j.ranks), j.own.String()))
	}
	return err
}

// endings waits until each rank has said how it ended or has gone, until late at most. It returns
// their words, "" for none.
func (j *job) endings(late <-chan struct{}) []string {
	said := make([]string, j.ranks)
	over := make([]bool, j.ranks)
	for n := 0; n < j.ranks; {
		var r int
		select {
		case a := <-j.answers:
			if r = a.Rank; r < 0 {
				r = -1 - r
				j.tell(order{}) // the others need not wait for it
			} else {
				said[r] = a.Mark
			}
		case <-late:
			return said
		}
		if !over[r] {
			over[r] = true
			n++
		}
	}
	return said
}

// ownEnds is how many jobs of this process ended well, except for Open MPI's own end.
var ownEnds atomic.Int32

// list names tests, only the last of many.
func list(tests []string) string {
	const most = 5
	if n := len(tests) - most; n > 0 {
		return fmt.Sprintf("%d tests and then %s", n, strings.Join(tests[n:], ", "))
	}
	return strings.Join(tests, ", ")
}
