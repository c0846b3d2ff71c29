package job

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/watch"
)

// testWorld is a double of a world: a rank that is a goroutine of this process, without MPI.
type testWorld struct {
	rank    int
	meeting *meeting
	work    []Work
	files   atomic.Pointer[FileState]
	aborted chan int
}

// meeting brings the ranks of a test together.
type meeting struct {
	size    int
	mu      sync.Mutex
	cond    sync.Cond
	round   int
	arrived int
	now     words // of those that have come
	last    words // of the round before, which stand until all have come again
}

type words struct {
	said    []byte
	failure error
}

func newMeeting(size int) *meeting {
	m := &meeting{size: size}
	m.cond.L = &m.mu
	return m
}

// meet returns the words of one of the ranks, and the failure of one, when all have come.
func (m *meeting) meet(said []byte, failure error) words {
	m.mu.Lock()
	defer m.mu.Unlock()
	if said != nil {
		m.now.said = said
	}
	if failure != nil {
		m.now.failure = failure
	}
	if m.arrived++; m.arrived == m.size {
		m.arrived, m.last, m.now = 0, m.now, words{}
		m.round++
		m.cond.Broadcast()
		return m.last
	}
	for round := m.round; m.round == round; {
		m.cond.Wait()
	}
	return m.last
}

func (w *testWorld) Agree(failure error) error { return w.meeting.meet(nil, failure).failure }

func (w *testWorld) Tell(root int, v any) error {
	var b []byte
	if w.rank == root {
		var err error
		if b, err = json.Marshal(v); err != nil {
			return err
		}
	}
	return json.Unmarshal(w.meeting.meet(b, nil).said, v)
}

func (w *testWorld) Work() []Work { return w.work }

func (w *testWorld) State() State {
	return State{Files: w.files.Load(), Comms: []CommState{{ID: "world", Entered: 1, Calls: 1, Last: "Barrier"}}}
}

func (w *testWorld) Carry(all []watch.Beat) []watch.Beat        { return all }
func (w *testWorld) Heartbeat() []byte                          { return nil }
func (w *testWorld) Heard(int, []byte) (string, bool)           { return "", false }
func (w *testWorld) WritesFiles() bool                          { return w.files.Load() != nil }
func (w *testWorld) KeepSigning(time.Duration, <-chan struct{}) {}
func (w *testWorld) LogStart()                                  {}
func (w *testWorld) Compare() error                             { return nil }
func (w *testWorld) Close() error                               { return nil }
func (w *testWorld) Account() []byte                            { return nil }
func (w *testWorld) Abort(status int)                           { w.aborted <- status }

func (w *testWorld) TellLast(bool, time.Time, func() [][]byte) {}

// stalled is work that stands still.
type stalled struct{ name string }

func (s stalled) Position() (uint64, bool)            { return 3, true }
func (s stalled) Stuck(time.Time, time.Duration) bool { return false }
func (s stalled) String() string                      { return s.name }

// watchedJob starts the watchdogs of three ranks. Rank 0 has work of a name that stands still, and
// rank 1 may be at work on files. said has the lines of the logs and of the report.
func watchedJob(t *testing.T, name string, state *FileState) (worlds []*testWorld, said <-chan string) {
	t.Helper()
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	stderr := os.Stderr
	os.Stderr = w
	t.Cleanup(func() { os.Stderr = stderr })
	lines := make(chan string, 1000)
	go func() {
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
	m := newMeeting(3)
	var started sync.WaitGroup
	for rank := range 3 {
		world := &testWorld{rank: rank, meeting: m, aborted: make(chan int, 1)}
		if rank == 0 {
			world.work = []Work{stalled{name}}
		}
		if rank == 1 {
			world.files.Store(state)
		} else if state != nil {
			world.files.Store(&FileState{What: "nothing"})
		}
		j := New(&Flags{Timeout: 400 * time.Millisecond}, world)
		j.Rank, j.Size, j.Nodes = rank, 3, 1
		j.Log = zerolog.New(w).Level(zerolog.ErrorLevel)
		worlds = append(worlds, world)
		started.Go(func() {
			if err := j.Watch(); err != nil {
				t.Error(err)
			}
		})
	}
	started.Wait()
	return worlds, lines
}

// await reads lines until one holds the text.
func await(t *testing.T, said <-chan string, text string) {
	t.Helper()
	var all []string
	for limit := time.After(10 * time.Minute); ; {
		select {
		case line := <-said:
			if all = append(all, line); strings.Contains(line, text) {
				return
			}
		case <-limit:
			t.Fatalf("no %q in\n%s", text, strings.Join(all, "\n"))
		}
	}
}

// Work that stands still ends the job, by rank 0 and with a report.
func TestStalledWork(t *testing.T) {
	worlds, said := watchedJob(t, "a stalled call", nil)
	if status := <-worlds[0].aborted; status != exitFailed {
		t.Errorf("status %d, want %d", status, exitFailed)
	}
	await(t, said, "--- this job hangs: a stalled call has not ended in 400ms")
	await(t, said, `call 1 on "world", Barrier: ranks 0-2 in it`)
	await(t, said, "this job hangs: a stalled call has not ended in 400ms")
}

// While a rank waits for files the job goes on, and says so.
func TestStalledByFiles(t *testing.T) {
	worlds, said := watchedJob(t, "a call of who waits for files",
		&FileState{What: "sync of x", Seconds: 1, Waits: true})
	await(t, said, "waits: rank 1 is in the sync of x, for 1.0 s")
	select {
	case <-worlds[0].aborted:
		t.Error("the job has ended while a rank waits for files")
	default:
	}
	worlds[1].files.Store(&FileState{What: "nothing"})
	<-worlds[0].aborted
	await(t, said, "--- this job hangs: a call of who waits for files has not ended in 400ms")
}
