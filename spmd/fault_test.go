package spmd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/fakelib"
	"lockstep/spmd"
	"lockstep/spmd/ddp"
	"lockstep/spmd/spmdtest"
)

const (
	// faultEnv is the folder of one run of a fault. It also marks the processes of
	// that run.
	faultEnv = "SPMD_TEST_FAULT"
	// faultSlack is what a machine that is busy with other tests may add.
	faultSlack = 20 * time.Second
)

// faultTimeout is --timeout where a fault shows as a hang. It covers the start, too, which
// takes longer on several GPUs.
var faultTimeout = func() time.Duration {
	if spmdtest.Device() == "host" {
		return 2 * time.Second
	}
	return 6 * time.Second
}()

// mishap is one fault: what goes wrong on one rank, and how the job must end.
type mishap struct {
	name   string
	ranks  int  // those that it needs; 0: any number but 1
	first  bool // rank 0 is the victim, else the last one
	second bool // and rank 1
	gpu    bool // it shows in the same way on GPUs
	rare   bool // only counted, by make test-faults: mpirun itself does not always end
	args   []string
	before func()                                                      // on the victim, before it is a rank
	double string                                                      // source of a library that goes before MPI's, on all ranks
	shm    string                                                      // size of a /dev/shm of the job's own, as mount(8) takes it; needs root
	run    func(ctx context.Context, w *spmd.World, victim bool) error // then all ranks wait for each other
	steps  []step

	cause  string   // what the job says once. {rank}, {host} and {pid} are the victim's
	want   []string // what it says too
	within time.Duration
	clean  bool // it ends with exit status 0
}

// step is a signal from outside, when the program has said something.
type step struct {
	after string
	to    string // "mpirun" or "rank", the victim
	sig   syscall.Signal
}

const (
	died = "the rank died: killed from outside"
	hung = "--- this job hangs"
)

var (
	diedWho  = []string{"rank={rank}", "host={host}", "pid={pid}"}
	everyLog = []string{"--log-ranks", "all"} // what is told at the victim, too
	hangFlag = []string{"--timeout", faultTimeout.String()}
	missing  = "NOT ARRIVED: rank {rank}"
)

// table is what can happen to a rank of a job on the host. docs/faults.md has the same
// for users.
func table() []mishap {
	const soon, atOnce = 10 * time.Second, 5 * time.Second
	hang := faultTimeout + 5*time.Second
	rows := []mishap{
		{name: "killed in compute", gpu: true, within: soon, run: killedInCompute, cause: died, want: diedWho},
		{name: "killed in a collective", ranks: 4, within: soon, run: killedInCollective, cause: died, want: diedWho},
		{name: "rank 0 killed in a collective", within: soon, first: true, run: killedInCollective, cause: died, want: diedWho},
		{name: "killed at exit", ranks: 4, within: soon, run: killedAtExit, cause: died, want: diedWho},
		// Open MPI says it: there is no job yet.
		{name: "killed before MPI starts", within: soon, before: die, cause: "noticed that process rank {rank} with PID", want: []string{"on node {host} exited on signal 9"}},
		{name: "killed at start", within: soon, before: func() { when("cudampi.Start(", die) }, cause: "noticed that process rank {rank} with PID", want: []string{"on node {host} exited on signal 9"}},

		// 6 MiB for each communicator, if it came from there.
		{name: "a small /dev/shm", ranks: 8, within: soon, shm: "8m", args: []string{"--rows", "8"}, before: happens, cause: "collectives=mpi-host", clean: true},
		{name: "no room for MPI's shared memory", within: atOnce, first: true, double: "fullatstart.c", cause: "MPI cannot start: there is no room for the memory that its processes share", want: []string{"rank {rank} (host {host}, pid {pid})"}},
		{name: "bad flags on many ranks", ranks: 64, within: soon, first: true, args: []string{"--colour"}, before: happens, cause: "app: unknown flag: --colour"},
		{name: "another flag on one rank", gpu: true, within: atOnce, before: func() { happens(); os.Args = append(os.Args, "--seed", "7") },
			cause: "app: the ranks were started differently: --seed is 42 on ", want: []string{", 7 on rank {rank}\n"}},

		{name: "stopped before MPI starts", within: hang, args: hangFlag, before: func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }, cause: "the start has not ended in " + faultTimeout.String()},
		{name: "ranks 0 and 1 stopped before MPI starts", within: hang + 6*time.Second, first: true, second: true, args: hangFlag, before: func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }, cause: "the start has not ended in " + faultTimeout.String()},
		// In the middle of MPI_Init: of Open MPI 4.1's mpirun one in some twenty hangs then.
		{name: "stopped at start", rare: true, within: hang, args: hangFlag, before: func() {
			when("cudampi.Start(", func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) })
		}, cause: "the start has not ended in " + faultTimeout.String()},
		{name: "stopped", gpu: true, within: hang, args: hangFlag, run: stopped, cause: hung, want: []string{missing, "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)", "AllReduce of 1000 float32 (sum)"}},
		{name: "rank 0 stopped", within: hang, first: true, args: hangFlag, run: stopped, cause: hung, want: []string{missing, "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "all suspended beyond --timeout", within: hang + 5*time.Second, args: hangFlag, run: suspendAll, cause: "went on after all ranks had been stopped", clean: true},
		{name: "asleep", gpu: true, within: hang, args: hangFlag, run: asleep, cause: hung,
			want: []string{missing, "rank {rank} (host {host}, pid {pid}): running, at spmd/fault_test.go:", "[sleep]", "spmd_test.oversleep", "AllReduce of 1000 float32 (sum)", `stream "work"`}},
		{name: "asleep in a goroutine", within: hang, args: hangFlag, run: asleepAside, cause: hung, want: []string{missing, "another goroutine at spmd/fault_test.go:", "[sleep]"}},
		{name: "asleep while others end", gpu: true, within: hang, args: hangFlag, run: stays, cause: hung, want: []string{"the program has ended here, and not on every rank", "spmd_test.oversleep", "rank {rank} (host {host}, pid {pid})"}},
		{name: "stopped at the end of MPI", within: hang, args: hangFlag, double: "stopsatend.c", cause: hung, want: []string{"the program has ended here, and not on every rank", "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "rank 0 stopped at the end of MPI", within: hang, first: true, args: hangFlag, double: "stopsatend.c", cause: hung, want: []string{"the program has ended here, and not on every rank", "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "a message that does not come", ranks: 4, within: hang, args: hangFlag, run: unsent, cause: hung, want: []string{"NOT ARRIVED: ranks 0, {rank}", "rank 0 waits in Recv of 7 int32 from rank {rank}", "[sleep]"}},
		{name: "a host function that never returns", within: hang, args: hangFlag, run: endless, cause: hung, want: []string{missing, `stream "endless": 1 command waits, the first is HostFunc from spmd/fault_test.go:`}},

		{name: "error", gpu: true, within: atOnce, run: failing(func() error { return errors.New("the victim fails") }), cause: "the victim fails", want: []string{"rank={rank}", "host={host}"}},
		{name: "panic", gpu: true, within: atOnce, run: failing(func() error { panic("the victim panics") }), cause: "panic: the victim panics", want: []string{"rank={rank}", "fault_test.go:", "goroutine "}},
		{name: "nil pointer", gpu: true, within: atOnce, run: failing(func() error { var p *int; *p = 1; return nil }), cause: "panic: runtime error: invalid memory address or nil pointer dereference", want: []string{"rank={rank}", "fault_test.go:"}},
		{name: "panic in a goroutine", gpu: true, within: atOnce, run: failing(func() error { go func() { panic("a goroutine panics") }(); select {} }), cause: "panic: a goroutine panics", want: []string{"fault_test.go:", "rank={rank}"}},
		{name: "log.Fatal", within: atOnce, run: failing(func() error { log.Fatal("the victim is fatal"); return nil }), cause: "the victim is fatal", want: append([]string{died}, diedWho...)},
		{name: "os.Exit(0)", gpu: true, within: atOnce, run: failing(func() error { os.Exit(0); return nil }), cause: died, want: append([]string{"os.Exit"}, diedWho...)},
		{name: "a stream fails", gpu: true, within: atOnce, run: streamFails, cause: "the stream fails", want: []string{`stream "late"`, "fault_test.go:", "rank={rank}"}},
		{name: "a stream fails after the end", gpu: true, within: atOnce, run: streamFailsLate, cause: "the stream fails", want: []string{`stream "late"`, "fault_test.go:", "rank={rank}"}},
		{name: "Together out of its communicator", gpu: true, ranks: 3, within: atOnce, run: together, cause: "not in the communicator", want: []string{"Together", "rank={rank}"}},

		{name: "SIGTERM to mpirun", within: 30 * time.Second, run: sleeps, steps: []step{{"ready", "mpirun", syscall.SIGTERM}}, cause: "ended by signal: terminated", want: []string{"host={host}"}},
		{name: "SIGTERM to a rank", within: 30 * time.Second, run: sleeps, steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "ended by signal: terminated", want: []string{"rank={rank}", "host={host}"}},
		{name: "SIGTERM to a rank that listens", within: 30 * time.Second, run: listens, args: everyLog, steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "asked to end early", clean: true},
		{name: "SIGUSR1 to mpirun", within: 30 * time.Second, run: listens, steps: []step{{"ready", "mpirun", syscall.SIGUSR1}}, cause: "asked to end early", clean: true},
		{name: "SIGUSR1 at start", within: 30 * time.Second, run: listens, args: everyLog, before: asksAtStart, cause: "asked to end early, before the program listened", clean: true},
		{name: "SIGUSR1 at start, nobody listens", within: 30 * time.Second, run: sleeps, before: asksAtStart, cause: "ended by signal: user defined signal 1", want: []string{"rank={rank}", "host={host}"}},
		{name: "SIGTERM twice", within: 30 * time.Second, run: hears, args: everyLog, steps: []step{{"ready", "rank", syscall.SIGTERM}, {"asked to end early", "rank", syscall.SIGTERM}}, cause: "ended by signal: terminated", want: []string{"asked to end early", "rank={rank}"}},
		{name: "SIGQUIT shows and goes on", within: 30 * time.Second, run: listens, args: everyLog,
			steps: []step{{"ready", "rank", syscall.SIGQUIT}, {"\n---\n", "rank", syscall.SIGTERM}}, cause: "--- shown on request", want: []string{"spmd_test.listens", "host {host}"}, clean: true},
	}
	longer := mishap{name: "a message of another length", gpu: true, within: atOnce, run: overlong, cause: "5 int32 elements, 4 expected", want: []string{"rank=0", "fault_test.go:"}}
	if spmdtest.Device() != "host" {
		longer.cause, longer.want = "a message from rank {rank} has 20 bytes, and Recv takes 16", []string{"rank=0", "fault_test.go:"}
	}
	rows = append(rows, longer)
	for _, c := range contracts {
		const different = "the ranks called different collectives"
		both := append([]string{"rank 0 at spmd/fault_test.go:", "rank {rank} at spmd/fault_test.go:"}, c.said...)
		// Whichever of the other ranks it is compared with first.
		row := mishap{name: "other " + c.what, gpu: true, within: atOnce, run: c.run, cause: different, want: append([]string{" at spmd/fault_test.go:"}, both[1:]...)}
		if c.brought && spmdtest.Device() == "host" {
			row.cause, row.want = brought, at
		}
		checked := mishap{name: "other " + c.what + ", --check", gpu: true, within: atOnce, args: []string{"--check"}, run: c.run, cause: different, want: both}
		rows = append(rows, row, checked)
	}
	return slices.Concat(rows, returnRows(), doorRows(), messageRows())
}

// contracts are the calls in which the victim differs from the other ranks.
var contracts = []struct {
	what    string
	run     func(ctx context.Context, w *spmd.World, victim bool) error
	said    []string
	brought bool // the call itself finds it on the host
}{
	{"collective", differ(sumUp, broadcast(0)), []string{lineOf(sumUp) + ": AllReduce of 64 int32, sum", "Broadcast of 64 int32, root 0"}, false},
	{"count", differ(sumUp, func(w *spmd.World, x spmd.Buffer[int32]) error { return sumUp(w, x.Slice(0, 7)) }),
		[]string{"AllReduce of 64 int32, sum", "AllReduce of 7 int32, sum"}, true},
	{"type", differ(sumUp, func(w *spmd.World, x spmd.Buffer[int32]) error {
		y, err := spmd.Alloc[float64](w, 64)
		if err != nil {
			return err
		}
		return spmd.AllReduce(w.Comm(), y, y, spmd.Sum)
	}), []string{"AllReduce of 64 int32, sum", "AllReduce of 64 float64, sum"}, true},
	{"operation", differ(sumUp, func(w *spmd.World, x spmd.Buffer[int32]) error { return spmd.AllReduce(w.Comm(), x, x, spmd.Max) }),
		[]string{"AllReduce of 64 int32, sum", "AllReduce of 64 int32, max"}, true},
	// It ends, with what any root gave.
	{"root", differ(broadcast(0), broadcast(1)), []string{"Broadcast of 64 int32, root 0", "Broadcast of 64 int32, root 1"}, false},
	{"scan", differ(scan(spmd.Scan[int32]), scan(spmd.ExScan[int32])), []string{": Scan of 64 int32, sum", "ExScan of 64 int32, sum"}, false},
	{"order", differ(inOrder(sumUp, barrier), inOrder(barrier, sumUp)), []string{lineOf(sumUp) + ": AllReduce of 64 int32, sum", lineOf(barrier) + ": Barrier"}, false},
}

// lineOf is where a function is that has one line.
func lineOf(fn collective) string {
	f := runtime.FuncForPC(reflect.ValueOf(fn).Pointer())
	file, line := f.FileLine(f.Entry())
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

// Without --check the all-reduce of one machine finds it: on the victim or another rank,
// naming the other one.
const brought = "brought another operation, type or count"

var at = []string{"spmd/fault_test.go:", "rank {rank}", "MPI_Allreduce", "host={host}"}

type (
	int32s     = spmd.Buffer[int32]
	collective = func(w *spmd.World, x int32s) error
)

// lineOf needs the whole function in one line.
func sumUp(w *spmd.World, x int32s) error { return spmd.AllReduce(w.Comm(), x, x, spmd.Sum) }

func barrier(w *spmd.World, _ spmd.Buffer[int32]) error { return spmd.Barrier(w.Comm()) }

func broadcast(root int) collective {
	return func(w *spmd.World, x spmd.Buffer[int32]) error { return spmd.Broadcast(w.Comm(), x, root) }
}

func scan(fn func(c spmd.Comm, dst, src spmd.Buffer[int32], op spmd.Op) error) collective {
	return func(w *spmd.World, x spmd.Buffer[int32]) error { return fn(w.Comm(), x, x, spmd.Sum) }
}

func inOrder(calls ...collective) collective {
	return func(w *spmd.World, x spmd.Buffer[int32]) error {
		for _, call := range calls {
			if err := call(w, x); err != nil {
				return err
			}
		}
		return nil
	}
}

// differ has the victim make another call than the other ranks.
func differ(usual, other collective) func(context.Context, *spmd.World, bool) error {
	return func(_ context.Context, w *spmd.World, victim bool) error {
		x, err := spmd.Alloc[int32](w, 64)
		if err != nil {
			return err
		}
		if err := sumUp(w, x); err != nil {
			return err
		}
		if victim {
			happens()
			return other(w, x)
		}
		return usual(w, x)
	}
}

// inject returns what the app does for a row of the table, on a process that is no
// rank yet.
func inject(row string) func(ctx context.Context, w *spmd.World) error {
	rows := table()
	f := &rows[slices.IndexFunc(rows, func(f mishap) bool { return f.name == row })]
	rank := os.Getenv("OMPI_COMM_WORLD_RANK")
	if rank == "0" {
		_ = os.WriteFile(filepath.Join(os.Getenv(faultEnv), "job"), []byte(os.Getenv("PMIX_NAMESPACE")), 0o666) // missing, it fails the test
	}
	if f.before != nil && (rank == strconv.Itoa(f.victim()) || f.second && rank == "1") {
		f.before()
	}
	return func(ctx context.Context, w *spmd.World) error {
		if err := spmd.Barrier(w.Comm()); err != nil || f.run == nil {
			return err
		}
		return f.run(ctx, w, w.Rank() == f.victim())
	}
}

func (f *mishap) size() int {
	if f.ranks == 0 {
		return someRanks()
	}
	return f.ranks
}

// someRanks are the ranks of a job for which any number but 1 will do: 4, or as many as SPMDTEST_RANKS asks for.
func someRanks() int {
	if n, err := strconv.Atoi(os.Getenv("SPMDTEST_RANKS")); err == nil && n > 1 {
		return n
	}
	return 4
}

func (f *mishap) victim() int {
	if f.first {
		return 0
	}
	return f.size() - 1
}

// happens notes that the fault happens now, and to whom.
func happens() {
	pid := strconv.Itoa(os.Getpid())
	if err := os.WriteFile(filepath.Join(os.Getenv(faultEnv), "fault"), []byte(pid), 0o666); err != nil {
		panic(err)
	}
}

// ready says to the test that a signal may come to any rank.
func ready(w *spmd.World, victim bool) error {
	err := spmd.Barrier(w.Comm())
	if victim {
		fmt.Fprintf(os.Stderr, "ready %d.\n", os.Getpid())
	}
	return err
}

func die() {
	happens()
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}

// asksAtStart sends SIGUSR1 while MPI starts.
func asksAtStart() {
	when("cudampi.Start(", func() {
		happens()
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	})
}

func oversleep() { time.Sleep(time.Hour) }

// when calls act once a goroutine of this process is in the function.
func when(function string, act func()) {
	go func() {
		for buf := make([]byte, 1<<20); !bytes.Contains(buf[:runtime.Stack(buf, true)], []byte(function)); {
			time.Sleep(time.Millisecond)
		}
		act()
	}()
}

func killedInCompute(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		when("spmd_test.compute(", die)
		compute()
	}
	return spmd.Barrier(w.Comm())
}

// compute ends never.
func compute() {
	for x := uint64(1); x != 0; { // odd for ever
		x *= 0x9e3779b97f4a7c15
	}
}

// killedInCollective has rank 1 keep the others in the call.
func killedInCollective(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 64)
	if err != nil {
		return err
	}
	if victim {
		when("shm.(*Comm).AllReduce(", die)
	}
	if w.Rank() == 1 {
		oversleep()
	}
	return sumUp(w, x)
}

// killedAtExit has rank 1 keep the others in Close.
func killedAtExit(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		when("verify.AtEnd(", die)
	}
	if w.Rank() == 1 {
		oversleep()
	}
	return nil
}

func stopped(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		happens()
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return err
		}
		oversleep() // this thread may run on for a moment
	}
	return waits(w)
}

// suspendAll has another process stop all ranks for longer than --timeout, as a laptop that
// is closed does, while they call collectives.
func suspendAll(_ context.Context, w *spmd.World, victim bool) error {
	pids, err := spmd.Alloc[int32](w, w.Size())
	if err != nil {
		return err
	}
	mine := pids.Slice(w.Rank(), w.Rank()+1)
	if err := mine.SetAll(int32(os.Getpid())); err != nil {
		return err
	}
	if err := spmd.AllGather(w.Comm(), pids, mine); err != nil {
		return err
	}
	over := make(chan error, 1)
	if victim {
		happens()
		all := make([]int32, w.Size())
		if err := pids.CopyTo(all); err != nil {
			return err
		}
		list := strings.Trim(fmt.Sprint(all), "[]")
		sh := exec.Command("sh", "-c", fmt.Sprintf("kill -STOP %s; sleep %g; kill -CONT %s", list, 1.5*faultTimeout.Seconds(), list))
		if err := sh.Start(); err != nil {
			return err
		}
		go func() { over <- sh.Wait() }()
	}
	state, err := spmd.Alloc[int32](w, 1)
	if err != nil {
		return err
	}
	for {
		var now int32
		select {
		case err := <-over:
			if err != nil {
				return err
			}
			now = 1
		default:
		}
		if err := state.SetAll(now); err != nil {
			return err
		}
		if err := spmd.AllReduce(w.Comm(), state, state, spmd.Max); err != nil {
			return err
		}
		if state.At(0) == 1 {
			if victim {
				fmt.Fprintln(os.Stderr, "went on after all ranks had been stopped")
			}
			return nil
		}
	}
}

func asleep(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		happens()
		oversleep()
	}
	return waits(w)
}

func asleepAside(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		happens()
		var wg sync.WaitGroup
		wg.Go(oversleep)
		wg.Wait()
	}
	return waits(w)
}

func stays(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		happens()
		oversleep()
	}
	return nil
}

// waits is the call that the victim, which is the last rank or rank 0, does not make. One of the others waits in a stream.
func waits(w *spmd.World) error {
	x, err := spmd.Alloc[float32](w, 1000)
	if err != nil {
		return err
	}
	if w.Rank() != min(1, w.Size()-2) {
		return spmd.AllReduce(w.Comm(), x, x, spmd.Sum)
	}
	s, err := w.NewStream("work")
	if err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
		return err
	}
	return s.Synchronize()
}

// overlong sends rank 0 more than it asks for.
func overlong(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 5)
	switch {
	case err != nil:
		return err
	case victim:
		happens()
		err = spmd.Send(w.Comm(), x, 0)
	case w.Rank() == 0:
		err = spmd.Recv(w.Comm(), x.Slice(0, 4), w.Size()-1)
	}
	return errors.Join(err, spmd.Barrier(w.Comm()))
}

func unsent(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 7)
	if err != nil {
		return err
	}
	if w.Rank() == 1 { // messages that come do not count
		for range 9 {
			if err := spmd.Send(w.Comm(), x, 2); err != nil {
				return err
			}
		}
	}
	for range 9 {
		if w.Rank() == 2 {
			if err := spmd.Recv(w.Comm(), x, 1); err != nil {
				return err
			}
		}
	}
	if victim {
		happens()
		oversleep()
	}
	if w.Rank() == 0 {
		return spmd.Recv(w.Comm(), x, w.Size()-1)
	}
	return spmd.Barrier(w.Comm())
}

func endless(_ context.Context, w *spmd.World, victim bool) error {
	if !victim {
		return spmd.Barrier(w.Comm())
	}
	s, err := w.NewStream("endless")
	if err != nil {
		return err
	}
	happens()
	if err := s.HostFunc(func() error { select {} }); err != nil {
		return err
	}
	return s.Synchronize()
}

func failing(how func() error) func(context.Context, *spmd.World, bool) error {
	return func(_ context.Context, w *spmd.World, victim bool) error {
		if victim {
			happens()
			return how()
		}
		return spmd.Barrier(w.Comm())
	}
}

// streamFails has the error come while the victim waits for something else.
func streamFails(_ context.Context, w *spmd.World, victim bool) error {
	if !victim {
		return spmd.Barrier(w.Comm())
	}
	s, err := w.NewStream("late")
	if err != nil {
		return err
	}
	happens()
	if err := s.HostFunc(func() error { return errors.New("the stream fails") }); err != nil {
		return err
	}
	select {}
}

// streamFailsLate: run is over when the stream fails, and the others are in a
// collective on theirs.
func streamFailsLate(_ context.Context, w *spmd.World, victim bool) error {
	s, err := w.NewStream("late")
	if err != nil {
		return err
	}
	if err := s.HostFunc(func() error {
		if victim {
			happens()
			return errors.New("the stream fails")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := spmd.Barrier(w.Comm().On(s)); err != nil && !victim {
		return err
	}
	return nil
}

func together(_ context.Context, w *spmd.World, victim bool) error {
	only, err := w.Comm().Split(w.Rank()/2*-1, 0)
	if err != nil {
		return err
	}
	if victim {
		happens()
	}
	for range ddp.Together(only, slices.Values([]int{1, 2})) {
	}
	return spmd.Barrier(w.Comm())
}

// sleeps does not listen: a signal ends it.
func sleeps(ctx context.Context, w *spmd.World, victim bool) error {
	if err := ready(w, victim); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// listens ends as a program with checkpoints does: all ranks after the same step.
func listens(ctx context.Context, w *spmd.World, victim bool) error {
	early := spmd.Preempted(ctx)
	x, err := spmd.Alloc[int32](w, 1)
	if err != nil {
		return err
	}
	if err := ready(w, victim); err != nil {
		return err
	}
	for {
		x.Set(0, 0)
		select {
		case <-early:
			x.Set(0, 1)
		case <-time.After(10 * time.Millisecond): // the step
		}
		if err := sumUp(w, x); err != nil || x.At(0) > 0 {
			return err
		}
	}
}

// hears has heard, and does not end.
func hears(ctx context.Context, w *spmd.World, victim bool) error {
	_ = spmd.Preempted(ctx)
	if err := ready(w, victim); err != nil {
		return err
	}
	select {}
}

// tally is what came of a row.
type tally struct {
	runs, missed int
	slowest      time.Duration
}

// TestFaults makes each fault of the table happen once, or LOCKSTEP_FAULTS times, and
// then prints what came of it. The job must say what happened, where and to whom,
// once; end in time with a status that is not 0; and leave no process and no file.
func TestFaults(t *testing.T) {
	t.Parallel()
	runs := 1
	s, many := os.LookupEnv("LOCKSTEP_FAULTS")
	if many {
		var err error
		if runs, err = strconv.Atoi(s); err != nil {
			t.Fatalf("LOCKSTEP_FAULTS=%s: want a number", s)
		}
	}
	rows := table()
	tallies := make([]tally, len(rows))
	t.Run("table", func(t *testing.T) {
		for i := range rows {
			t.Run(rows[i].name, func(t *testing.T) {
				t.Parallel()
				if rows[i].rare && !many {
					t.Skip("Open MPI's mpirun itself may hang: make test-faults counts how often")
				}
				if !rows[i].gpu {
					spmdtest.HostOnly(t, "GPUs have faults of their own")
				}
				spmdtest.Ranks(t, rows[i].size())
				if rows[i].shm != "" && exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm").Run() != nil {
					t.Skip("no mount is allowed here")
				}
				for range runs {
					took, out, err := rows[i].happen(t)
					for tries := 1; errors.Is(err, errNoStart) && tries < 5; tries++ {
						took, out, err = rows[i].happen(t)
					}
					tallies[i].runs++
					tallies[i].slowest = max(tallies[i].slowest, took)
					if err != nil {
						tallies[i].missed++
						t.Errorf("%v\n%s", err, out)
					} else if testing.Verbose() {
						t.Logf("%v after the fault\n%s", took, out)
					}
				}
			})
		}
	})
	if !many {
		return
	}
	fmt.Printf("%-44s %5s %7s %10s %8s\n", "fault", "runs", "missed", "slowest s", "limit s")
	for i, r := range tallies {
		fmt.Printf("%-44s %5d %7d %10.1f %8.0f\n", rows[i].name, r.runs, r.missed, r.slowest.Seconds(), rows[i].within.Seconds())
	}
}

// errNoStart is that of a job which did not come to its fault: the short --timeout of the row is that of the start, too,
// and the machine was busy with other tests.
var errNoStart = errors.New("the start took longer than the row's --timeout")

// happen makes the fault happen once. took is from the fault to the end of the last
// process.
func (f *mishap) happen(t *testing.T) (took time.Duration, said string, err error) {
	dir, err := os.MkdirTemp("", "fault")
	if err != nil {
		return 0, "", err
	}
	defer os.RemoveAll(dir)
	temp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temp, 0o777); err != nil {
		return 0, "", err
	}
	started := spmdtest.Turn()
	defer started()
	const start = time.Minute // of a job, on a busy machine
	ctx, cancel := context.WithTimeout(t.Context(), start+f.within+faultSlack)
	defer cancel()
	marker := faultEnv + "=" + dir
	env := []string{appEnv + "=fault " + f.name, marker, "TMPDIR=" + temp}
	if f.double != "" {
		lib := fakelib.Build(t, dir, "libdouble.so", filepath.Join("testdata", f.double))
		env = append(env, strings.TrimSpace("LD_PRELOAD="+lib+" "+os.Getenv("LD_PRELOAD")), fmt.Sprintf("%s_RANK=%d", faultEnv, f.victim()))
	}
	cmd := spmdtest.Command(ctx, t, f.size(), env, f.args...)
	if f.shm != "" {
		cmd.Args = append([]string{"unshare", "-m", "sh", "-c", `mount -t tmpfs -o size="$0" tmpfs /dev/shm && exec "$@"`, f.shm, cmd.Path}, cmd.Args[1:]...)
		if cmd.Path, err = exec.LookPath("unshare"); err != nil {
			return 0, "", err
		}
	}
	out := &transcript{news: make(chan struct{}, 1), started: started}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return 0, "", err
	}
	defer func() { // what should not be there any more, after a failure
		for _, pid := range marked(marker) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status says it
		close(ended)
	}()
	since := f.follow(cmd.Process.Pid, out, ended)
	<-ended
	said = out.String()
	if ctx.Err() != nil {
		return 0, said, errors.New("the job did not end")
	}
	b, err := os.ReadFile(filepath.Join(dir, "fault"))
	if len(f.steps) == 0 {
		info, serr := os.Stat(filepath.Join(dir, "fault"))
		if err := errors.Join(err, serr); err != nil {
			if strings.Contains(said, "app: the start has not ended in "+faultTimeout.String()) {
				err = errNoStart
			}
			return 0, said, fmt.Errorf("the fault did not happen: %w", err)
		}
		since = info.ModTime()
	} else if since.IsZero() {
		return 0, said, errors.New("the job ended before the signal")
	}
	for len(marked(marker)) > 0 && time.Since(since) < f.within+faultSlack {
		time.Sleep(10 * time.Millisecond)
	}
	took = time.Since(since)
	if left := marked(marker); len(left) > 0 {
		return took, said, fmt.Errorf("processes %v are left after %v", left, took)
	}
	if took > f.within+faultSlack {
		return took, said, fmt.Errorf("it took %v, want %v", took, f.within)
	}
	return took, said, errors.Join(f.judge(said, string(b), cmd.ProcessState.ExitCode()), leftovers(dir))
}

// follow sends the signals of the row and returns when the last one went.
func (f *mishap) follow(mpirun int, out *transcript, ended <-chan struct{}) (last time.Time) {
	for _, s := range f.steps {
		if !out.wait(s.after, ended) {
			return time.Time{}
		}
		pid := mpirun
		if s.to == "rank" {
			pid, _ = strconv.Atoi(readyPID(out.String()))
		}
		if pid <= 0 || syscall.Kill(pid, s.sig) != nil {
			return time.Time{}
		}
		last = time.Now()
	}
	return last
}

// readyPID is the process that said that it is ready.
func readyPID(said string) string {
	_, pid, _ := strings.Cut(said, "ready ")
	pid, _, _ = strings.Cut(pid, ".")
	return pid
}

// judge compares what the job said with the row.
func (f *mishap) judge(said, pid string, status int) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if pid == "" {
		pid = readyPID(said)
	}
	fill := strings.NewReplacer("{host}", host, "{pid}", pid, "{rank}", strconv.Itoa(f.victim()))
	var errs []error
	if (status == 0) != f.clean {
		errs = append(errs, fmt.Errorf("exit status %d", status))
	}
	if n := strings.Count(said, fill.Replace(f.cause)); f.cause != "" && n != 1 {
		errs = append(errs, fmt.Errorf("%q comes %d times, want once", fill.Replace(f.cause), n))
	}
	for _, want := range f.want {
		if want = fill.Replace(want); !strings.Contains(said, want) {
			errs = append(errs, fmt.Errorf("%q is not said", want))
		}
	}
	if n := strings.Count(said, "[running]:"); n > 1 {
		errs = append(errs, fmt.Errorf("%d stacks, want one", n))
	}
	return errors.Join(errs...)
}

// leftovers finds the files that a job has left: in its TMPDIR, and in /dev/shm under
// its number.
func leftovers(dir string) error {
	var left []string
	entries, err := os.ReadDir(filepath.Join(dir, "tmp"))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	b, jerr := os.ReadFile(filepath.Join(dir, "job"))
	if err := errors.Join(err, jerr); err != nil {
		return err
	}
	if len(b) == 0 {
		return errors.New("the job did not say its number")
	}
	pattern := "/dev/shm/*" + string(b) + "*"
	if n, err := strconv.ParseUint(string(b), 10, 32); err == nil { // as Open MPI 4 puts it into names
		pattern = fmt.Sprintf("/dev/shm/*.%x.*", n)
	}
	shared, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	left = append(left, shared...)
	if left != nil {
		return fmt.Errorf("files are left: %q", left)
	}
	return nil
}

// marked returns the processes whose environment has the marker.
func marked(marker string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is good
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(b, []byte(marker+"\x00")) {
			continue // it has ended meanwhile, or is another user's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// transcript is what a program has written so far.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{} // 1

	started func() // called with the first text
}

func (t *transcript) Write(b []byte) (int, error) {
	t.started()
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case t.news <- struct{}{}:
	default:
	}
	return t.text.Write(b)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// wait returns when text was written, or false when the program ended before.
func (t *transcript) wait(text string, ended <-chan struct{}) bool {
	for !strings.Contains(t.String(), text) {
		select {
		case <-t.news:
		case <-ended:
			return strings.Contains(t.String(), text)
		}
	}
	return true
}
