package spmd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// timeoutEnv is faultTimeout of a rank, where it has another than the test.
const timeoutEnv = "SPMD_TEST_FAULT_TIMEOUT"

// faultTimeout is --timeout where a fault shows as a hang. It covers the start, too, which takes longer on several GPUs. A
// machine that is too busy for it gets more: see mishap.patient.
var faultTimeout = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(timeoutEnv)); err == nil {
		return d
	}
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
	more   bool // for make test-all: another row is of its kind
	local  bool // where ranks are goroutines it is the same: make test has it so, make test-all with processes
	rare   bool // only counted, by make test-faults: mpirun itself does not always end
	args   []string
	before func()                                                      // on the victim, before it is a rank
	double string                                                      // source of a library that goes before MPI's, on all ranks
	shell  string                                                      // what a shell does before mpirun, with mounts of its own; needs root
	run    func(ctx context.Context, w *spmd.World, victim bool) error // then all ranks wait for each other
	apart  []string                                                    // a command that starts each rank, in namespaces of its own; needs root
	steps  []step

	cause  string   // what the job says once. {rank}, {host} and {pid} are the victim's
	want   []string // what it says too
	or     []string // or all of this, where something else may notice it first
	within time.Duration
	clean  bool                           // it ends with exit status 0
	traced func(f *mishap, rank int) bool // of which ranks a file of --trace has calls; nil: there is none

	timeout time.Duration // see patient
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
		{name: "killed in a collective", ranks: 4, within: soon, run: killedInCollective, cause: died, want: diedWho, traced: others},
		{name: "rank 0 killed in a collective", more: true, within: soon, first: true, run: killedInCollective, cause: died, want: diedWho, traced: others},
		{name: "killed at exit", more: true, ranks: 4, within: soon, run: killedAtExit, cause: died, want: diedWho},
		// Open MPI says it: there is no job yet.
		{name: "killed before MPI starts", within: soon, before: die, cause: "noticed that process rank {rank} with PID", want: []string{"on node {host} exited on signal 9"}},
		{name: "killed at start", within: soon, before: func() { when("cudampi.Start(", die) }, cause: "noticed that process rank {rank} with PID", want: []string{"on node {host} exited on signal 9"}},

		// 6 MiB for each communicator, if it came from there.
		{name: "a small /dev/shm", ranks: 8, within: soon, shell: "mount -t tmpfs -o size=8m tmpfs /dev/shm", args: []string{"--rows", "8"}, before: happens, cause: "collectives=mpi-host", clean: true},
		{name: "no room for MPI's shared memory", within: atOnce, first: true, double: "fullatstart.c", cause: "MPI cannot start: there is no room for the memory that its processes share", want: []string{"rank {rank} (host {host}, pid {pid})"}},
		{name: "a container for each rank, with its own users", ranks: 3, within: soon, apart: []string{"unshare", "-U", "-r"}, before: happens, run: gathersMuch, cause: "this rank is in a container of its own, with its own user namespace", clean: true},
		{name: "a container for each rank, with its own processes", ranks: 3, within: soon, apart: []string{"unshare", "-p", "--fork"}, before: happens, run: gathersMuch, cause: "small collectives go through messages, not through shared memory",
			want: []string{"this rank is in a container of its own, with its own process namespace", "rank 1: "}, clean: true},
		{name: "TMPDIR is full", within: soon, first: true, shell: `mount -t tmpfs -o size=1m tmpfs "$TMPDIR"`, before: happens, cause: "app: TMPDIR: ", want: []string{" MiB free, and Open MPI needs 9 to start: make room there, or set TMPDIR to another folder\n"}},
		{name: "a limit on the size of files", within: soon, first: true, shell: "ulimit -f 100", before: happens, cause: "app: files may have 100 KiB (ulimit -f), and Open MPI needs 4200 to start: ulimit -f unlimited\n"},
		{name: "bad flags on many ranks", ranks: 64, within: soon, first: true, args: []string{"--colour"}, before: happens, cause: "app: unknown flag: --colour"},
		{name: "another flag on one rank", gpu: true, within: atOnce, before: func() { happens(); os.Args = append(os.Args, "--seed", "7") },
			cause: "app: the ranks were started differently: --seed is 42 on ", want: []string{", 7 on rank {rank}\n"}},

		{name: "stopped before MPI starts", within: hang, args: hangFlag, before: func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }, cause: "the start has not ended in " + faultTimeout.String()},
		{name: "ranks 0 and 1 stopped before MPI starts", more: true, within: hang + 6*time.Second, first: true, second: true, args: hangFlag, before: func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }, cause: "the start has not ended in " + faultTimeout.String()},
		// In the middle of MPI_Init: of Open MPI 4.1's mpirun one in some twenty hangs then.
		{name: "stopped at start", rare: true, within: hang, args: hangFlag, before: func() {
			when("cudampi.Start(", func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) })
		}, cause: "the start has not ended in " + faultTimeout.String()},
		{name: "stopped", gpu: true, within: hang, args: hangFlag, run: stopped, cause: hung, want: []string{missing, "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)", "AllReduce of 1000 float32 (sum)"}},
		{name: "rank 0 stopped", more: true, within: hang, first: true, args: hangFlag, run: stopped, cause: hung, want: []string{missing, "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "all suspended beyond --timeout", within: hang + 5*time.Second, args: hangFlag, run: suspendAll, cause: "went on after all ranks had been stopped", clean: true},
		{name: "asleep", local: true, gpu: true, within: hang, args: hangFlag, run: asleep, cause: hung,
			want: []string{missing, "rank {rank} (host {host}, pid {pid}): running, at spmd/fault_test.go:", "[sleep]", "spmd_test.oversleep", "AllReduce of 1000 float32 (sum)", `stream "work"`}, traced: everyRank},
		{name: "asleep in a goroutine", more: true, within: hang, args: hangFlag, run: asleepAside, cause: hung, want: []string{missing, "another goroutine at spmd/fault_test.go:", "[sleep]"}},
		{name: "asleep while others end", local: true, gpu: true, within: hang, args: hangFlag, run: stays, cause: hung, want: []string{"the program has ended here, and not on every rank", "spmd_test.oversleep", "rank {rank} (host {host}, pid {pid})"}},
		{name: "stopped at the end of MPI", within: hang, args: hangFlag, double: "stopsatend.c", cause: hung, want: []string{"the program has ended here, and not on every rank", "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "rank 0 stopped at the end of MPI", more: true, within: hang, first: true, args: hangFlag, double: "stopsatend.c", cause: hung, want: []string{"the program has ended here, and not on every rank", "rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "a message that does not come", local: true, ranks: 4, within: hang, args: hangFlag, run: unsent, cause: hung, want: []string{"NOT ARRIVED: ranks 0, {rank}", "rank 0 waits in Recv of 7 int32 from rank {rank}", "[sleep]"}},
		{name: "a host function that never returns", local: true, within: hang, args: hangFlag, run: endless, cause: hung, want: []string{missing, `stream "endless": 1 command waits, the first is HostFunc from spmd/fault_test.go:`}},

		{name: "error", local: true, gpu: true, within: atOnce, run: failing(func() error { return errors.New("the victim fails") }), cause: "the victim fails", want: []string{"rank={rank}", "host={host}", "summary of "}, args: []string{"--summary", "on"}, traced: everyRank},
		{name: "panic", local: true, gpu: true, within: atOnce, run: failing(func() error { panic("the victim panics") }), cause: "panic: the victim panics", want: []string{"rank={rank}", "fault_test.go:", "goroutine "}},
		{name: "nil pointer", more: true, gpu: true, within: atOnce, run: failing(func() error { var p *int; *p = 1; return nil }), cause: "panic: runtime error: invalid memory address or nil pointer dereference", want: []string{"rank={rank}", "fault_test.go:"}},
		{name: "panic in a goroutine", gpu: true, within: atOnce, run: failing(func() error { go func() { panic("a goroutine panics") }(); select {} }), cause: "panic: a goroutine panics", want: []string{"fault_test.go:", "rank={rank}"}},
		{name: "Goexit", local: true, within: atOnce, run: failing(func() error { runtime.Goexit(); return nil }), cause: "the program has ended its goroutine (runtime.Goexit)", want: []string{"rank={rank}"}},
		{name: "Goexit on a stream", local: true, gpu: true, within: atOnce, run: exitsOnStream, cause: "runtime.Goexit ended the goroutine", want: []string{`stream "exits"`, "fault_test.go:", "rank={rank}"}},
		{name: "log.Fatal", within: atOnce, run: failing(func() error { log.Fatal("the victim is fatal"); return nil }), cause: "the victim is fatal", want: append([]string{died}, diedWho...)},
		{name: "os.Exit(0)", gpu: true, within: atOnce, run: failing(func() error { os.Exit(0); return nil }), cause: died, want: append([]string{"os.Exit"}, diedWho...)},
		{name: "a stream fails", more: true, gpu: true, within: atOnce, run: streamFails, cause: "the stream fails", want: []string{`stream "late"`, "fault_test.go:", "rank={rank}"}},
		{name: "a stream fails after the end", local: true, gpu: true, within: atOnce, run: streamFailsLate, cause: "the stream fails", want: []string{`stream "late"`, "fault_test.go:", "rank={rank}"}},
		{name: "Together out of its communicator", local: true, gpu: true, ranks: 3, within: atOnce, run: together, cause: "not in the communicator", want: []string{"Together", "rank={rank}"}},

		{name: "SIGTERM to mpirun", within: 30 * time.Second, run: sleeps, steps: []step{{"ready", "mpirun", syscall.SIGTERM}}, cause: "ended by signal: terminated", want: []string{"host={host}"}},
		{name: "SIGTERM to a rank", within: 30 * time.Second, run: sleeps, steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "ended by signal: terminated", want: []string{"rank={rank}", "host={host}"}, args: []string{"--summary", "on"}, traced: everyRank},
		{name: "SIGTERM to a rank that listens", more: true, within: 30 * time.Second, run: listens, args: everyLog, steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "asked to end early", clean: true},
		{name: "SIGUSR1 to mpirun", within: 30 * time.Second, run: listens, steps: []step{{"ready", "mpirun", syscall.SIGUSR1}}, cause: "asked to end early", clean: true},
		{name: "SIGUSR1 at start", within: 30 * time.Second, run: listens, args: everyLog, before: asksAtStart, cause: "asked to end early, before the program listened", clean: true},
		{name: "SIGUSR1 at start, nobody listens", more: true, within: 30 * time.Second, run: sleeps, before: asksAtStart, cause: "ended by signal: user defined signal 1", want: []string{"rank={rank}", "host={host}"}},
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
			row.or, row.want = row.want, brought
		}
		checked := mishap{name: "other " + c.what + ", --check", local: true, gpu: true, within: atOnce, args: []string{"--check"}, run: c.run, cause: different, want: both}
		row.more = c.what != "collective" && c.what != "count"
		checked.more = c.what != "order"
		rows = append(rows, row, checked)
	}
	// Without --check it depends on MPI what becomes of it.
	rows = append(rows, mishap{name: "other counts, --check", local: true, ranks: 3, gpu: true, within: atOnce, args: []string{"--check"}, run: differ(gatherParts(0), gatherParts(1)),
		cause: "the ranks called different collectives", want: []string{"rank 0 at spmd/fault_test.go:", ", counts[0] is 2; rank {rank} at spmd/fault_test.go:", ", counts[0] is 3 ("}})
	return slices.Concat(rows, signalRows(), returnRows(), doorRows(), messageRows())
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

// Without --check the all-reduce of one machine finds it, on the victim or another rank, naming the other one; unless rank 0
// hears of both calls first, on a busy machine.
var brought = []string{"spmd/fault_test.go:", "rank {rank}", "MPI_Allreduce", "brought another operation, type or count", "host={host}"}

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

// gatherParts gathers two elements of each rank, of rank 0 some more and of rank 1 as many fewer.
func gatherParts(more int) collective {
	return func(w *spmd.World, x spmd.Buffer[int32]) error {
		counts := slices.Repeat([]int{2}, w.Size())
		counts[0] += more
		counts[1] -= more
		return spmd.AllGatherV(w.Comm(), x.Slice(0, 2*w.Size()), x.Slice(60, 62), counts)
	}
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

func oversleep() { time.Sleep(time.Hour) }

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

// gathersMuch makes communicators, and has long messages go between all ranks.
func gathersMuch(_ context.Context, w *spmd.World, _ bool) error {
	for range 4 {
		if _, err := w.Comm().Split(0, 0); err != nil {
			return err
		}
	}
	const n = 1 << 20
	x, err := spmd.Alloc[float32](w, n*w.Size())
	if err != nil {
		return err
	}
	mine := x.Slice(w.Rank()*n, (w.Rank()+1)*n)
	if err := mine.SetAll(float32(w.Rank())); err != nil {
		return err
	}
	if err := spmd.AllGather(w.Comm(), x, mine); err != nil {
		return err
	}
	for r := range w.Size() {
		if got := x.At(r*n + n - 1); got != float32(r) {
			return fmt.Errorf("of rank %d: %v", r, got)
		}
	}
	return nil
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

// exitsOnStream has a function on a stream end its goroutine, as t.Fatal does.
func exitsOnStream(_ context.Context, w *spmd.World, victim bool) error {
	if !victim {
		return spmd.Barrier(w.Comm())
	}
	s, err := w.NewStream("exits")
	if err != nil {
		return err
	}
	happens()
	return errors.Join(s.HostFunc(func() error { runtime.Goexit(); return nil }), s.Synchronize())
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
