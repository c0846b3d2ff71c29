package inspect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"lockstep/internal/cli"
	"lockstep/internal/mpirun"
	"lockstep/internal/process"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// appEnv makes this binary a program whose last rank does not come to a collective until it is told
// to.
const appEnv = "STATUS_TEST_APP"

func TestMain(m *testing.M) {
	if os.Getenv(appEnv) == "" {
		os.Exit(m.Run())
	}
	spmd.Main(pflag.NewFlagSet("latecomer", pflag.ContinueOnError), func(ctx context.Context, w *spmd.World) error {
		early := spmd.Preempted(ctx)
		w.Log().Warn().Int("pid", os.Getpid()).Msg("here")
		if w.Rank() == w.Size()-1 {
			<-early
		}
		return spmd.Barrier(w.Comm())
	})
}

// running starts the program on n ranks, 0 without mpirun, and returns the processes of its ranks.
func running(t *testing.T, n int) (cmd *exec.Cmd, pids []int) {
	t.Helper()
	cmd = spmdtest.Command(mpirun.Patience(t), t, n, []string{appEnv + "=1"}, "--log-ranks", "all",
		"--log-format", "json")
	out, err := cmd.StderrPipe()
	spmdtest.Must(t, err)
	if err := mpirun.Start(cmd); err != nil { // TestOtherUser ends a thread
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for len(pids) < max(n, 1) && lines.Scan() {
		var line struct {
			Message   string
			PID, Rank int
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "here" {
			pids = append(pids, line.PID)
		}
	}
	if len(pids) < max(n, 1) {
		t.Fatalf("only %d of %d ranks began", len(pids), n)
	}
	go func() {
		for lines.Scan() { // so that nobody waits for a reader
		}
	}()
	return cmd, pids
}

// finish lets the job go on to its end.
func finish(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	spmdtest.Must(t, cmd.Process.Signal(syscall.SIGUSR1))
	if err := cmd.Wait(); err != nil {
		t.Errorf("the job that was looked at: %v", err)
	}
}

func ask(t *testing.T, asJSON bool, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := status(&out, args, asJSON); err != nil {
		t.Fatalf("launch status %v: %v", args, err)
	}
	return out.String()
}

func TestStatus(t *testing.T) {
	cmd, pids := running(t, 3)
	jobs, _ := who(pids)
	if len(jobs) != 1 || len(jobs[0].ranks) != 3 || jobs[0].ranks[2].Rank != 2 ||
		jobs[0].ranks[0].Program == "" || jobs[0].ranks[0].Phase != "running" {
		t.Fatalf("a job of 3 ranks is seen as %+v", jobs)
	}
	for _, by := range []string{jobs[0].name, strconv.Itoa(pids[0]), strconv.Itoa(pids[2]),
		strconv.Itoa(cmd.Process.Pid)} {
		text := ask(t, false, by)
		for _, want := range []string{"shown on request", "rank 2", "status_test.go:", "[chan receive]"} {
			if !strings.Contains(text, want) {
				t.Errorf("launch status %s lacks %q:\n%s", by, want, text)
			}
		}
	}
	var report struct {
		Report string
		Ranks  []struct{ Rank, PID int }
	}
	if err := json.Unmarshal([]byte(ask(t, true, jobs[0].name)), &report); err != nil ||
		len(report.Ranks) != 3 || report.Ranks[1].PID != jobs[0].ranks[1].PID {
		t.Errorf("as JSON: %+v, %v", report, err)
	}
	finish(t, cmd)
	listening, err := process.ListeningRanks()
	spmdtest.Must(t, err)
	for _, pid := range pids {
		if slices.Contains(listening, pid) {
			t.Errorf("process %d has ended and still listens", pid)
		}
	}
}

func TestSeveralJobs(t *testing.T) {
	one, onePIDs := running(t, 0)
	two, twoPIDs := running(t, 2)
	jobs, silent := who(append(slices.Clone(twoPIDs), onePIDs...))
	if len(jobs) != 2 || len(silent) != 0 || jobs[0].name != strconv.Itoa(onePIDs[0]) || len(jobs[1].ranks) != 2 {
		t.Fatalf("two jobs are seen as %+v, silent %q", jobs, silent)
	}
	var out bytes.Buffer
	spmdtest.Must(t, list(&out, jobs, silent, false))
	lines := strings.Split(out.String(), "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[1], jobs[0].name) || !strings.HasPrefix(lines[2], jobs[1].name) ||
		!strings.Contains(lines[2], strconv.Itoa(twoPIDs[1])) {
		t.Errorf("two jobs are listed as\n%s", &out)
	}
	if text := ask(t, false, jobs[0].name); !strings.Contains(text, "rank 0") {
		t.Errorf("of a job of one rank:\n%s", text)
	}

	// A stopped process takes connections, and does not answer.
	spmdtest.Must(t, syscall.Kill(onePIDs[0], syscall.SIGSTOP))
	for stat := ""; !strings.Contains(stat, ") T "); { // not at once on all its threads
		b, err := os.ReadFile("/proc/" + strconv.Itoa(onePIDs[0]) + "/stat")
		spmdtest.Must(t, err)
		stat = string(b)
	}
	jobs, silent = who(append(slices.Clone(twoPIDs), onePIDs...))
	if len(jobs) != 1 || len(silent) != 1 || !strings.Contains(silent[0], strconv.Itoa(onePIDs[0])) {
		t.Errorf("with one stopped: %+v, silent %q", jobs, silent)
	}
	spmdtest.Must(t, syscall.Kill(onePIDs[0], syscall.SIGCONT))
	finish(t, one)
	finish(t, two)
}

func TestNobody(t *testing.T) {
	var out bytes.Buffer
	err := status(&out, []string{"no-such-job"}, false)
	if !errors.As(err, new(cli.Usage)) || !strings.Contains(err.Error(), "no-such-job") {
		t.Errorf("a job that is not there: %v", err)
	}
	if _, err := process.AskWho(1, time.Second); err == nil {
		t.Error("process 1 answers")
	}
}

// The words of a process cannot control the terminal of who looks at it.
func TestEscapes(t *testing.T) {
	pid := os.Getpid()
	ln, err := process.Listen()
	spmdtest.Must(t, err)
	defer ln.Close()
	go process.Serve(ln, func(request string) string { // a stand-in for a rank that went bad
		switch request {
		case process.RequestWho:
			return fmt.Sprintf(`{"job":"evil\u001b[2J","pid":%d}`, pid)
		case process.RequestJSON:
			return "{\"report\":\"\u009b2J\"}\r\n"
		}
		return "--- \x1b]0;owned\x07\n"
	})
	for asJSON, want := range map[bool]string{false: `--- \x1b]0;owned\a` + "\n",
		true: `{"report":"\u009b2J"}` + " \n"} {
		if got := ask(t, asJSON, strconv.Itoa(pid)); got != want {
			t.Errorf("as JSON %v: %q, want %q", asJSON, got, want)
		}
	}
	jobs, _ := who([]int{pid})
	var out bytes.Buffer
	if err := list(&out, jobs, nil, false); err != nil || strings.Contains(out.String(), "\x1b") ||
		!strings.Contains(out.String(), "evil") {
		t.Errorf("listed as %q, %v", &out, err)
	}
}

// TestOtherUser: other users get no answer about a job.
func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	cmd, pids := running(t, 0)
	got := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		const nobody = 65534
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 { // of this thread alone
			got <- e
			return
		}
		_, err := process.AskWho(pids[0], mpirun.Limit(t))
		got <- err
	}()
	if err := <-got; !errors.Is(err, process.ErrOtherUser) {
		t.Errorf("another user is told: %v", err)
	}
	finish(t, cmd)
}

// On a node that many share, the ranks of others are one line.
func TestUnanswered(t *testing.T) {
	me, gone := os.Getpid(), 1<<30
	other := fmt.Errorf("process 7 of user 8 %w", process.ErrOtherUser)
	pids, errs := []int{me, me, me, me, gone}, []error{other, nil, errors.New("it is stopped"), other, other}
	if got, want := unanswered(pids, errs), []string{"it is stopped",
		"ranks of other users, which do not answer this one: 2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
