package spmd_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// timeoutEnv is faultTimeout of a rank, if it has another than the test.
const timeoutEnv = "SPMD_TEST_FAULT_TIMEOUT"

// faultTimeout is --timeout for faults that show as a hang. It covers the start, too, which takes
// longer on several GPUs. A machine that is too busy for it gets more: see mishap.patient.
var faultTimeout = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(timeoutEnv)); err == nil {
		return d
	}
	if spmdtest.Device() == "host" {
		return 2 * time.Second
	}
	return 6 * time.Second
}()

// mishap is one fault on one rank, and how the job must end.
type mishap struct {
	name   string
	ranks  int  // those that it needs; 0: any number but 1
	first  bool // rank 0 is the victim, else the last one
	second bool // and rank 1
	gpu    bool // it shows in the same way on GPUs
	more   bool // for make test-all: another row is of its kind
	alone  bool // it is started without mpirun
	local  bool // ranks that are goroutines do the same: make test takes these, make test-all processes
	rare   bool // only counted, by make test-faults: mpirun itself does not always end
	args   []string
	before func() // on the victim, before it is a rank
	// source of a library that goes before MPI's, on all ranks
	double string
	// commands of a shell before mpirun, with mounts of its own; needs root
	shell string
	run   func(ctx context.Context, w *spmd.World, victim bool) error // then all ranks wait for each other
	// a command that starts each rank, in namespaces of its own; needs root
	apart []string
	steps []step

	cause  string   // the job's words, once. {rank}, {host} and {pid} are the victim's
	want   []string // what it says too
	never  string   // and what it does not
	or     []string // or all of this, if something else may notice it first
	within time.Duration
	clean  bool                           // it ends with exit status 0
	traced func(f *mishap, rank int) bool // ranks of whose calls a file of --trace has some; nil: there is none

	timeout time.Duration // see patient
}

// contracts are the calls in which the victim differs from the other ranks.
var contracts = []struct {
	what    string
	run     func(ctx context.Context, w *spmd.World, victim bool) error
	said    []string
	brought string // the call itself finds it on the host, whoever brings this
}{
	{"collective", differ(sumUp, broadcast(0)),
		[]string{lineOf(sumUp) + ": AllReduce of 64 int32, sum", "Broadcast of 64 int32, root 0"}, ""},
	{"count", differ(sumUp, func(w *spmd.World, x spmd.Buffer[int32]) error { return sumUp(w, x.Slice(0, 7)) }),
		[]string{"AllReduce of 64 int32, sum", "AllReduce of 7 int32, sum"}, "AllReduce of "},
	{"type", differ(sumUp, func(w *spmd.World, x spmd.Buffer[int32]) error {
		y, err := spmd.Alloc[float64](w, 64)
		if err != nil {
			return err
		}
		return spmd.AllReduce(w.Comm(), y, y, spmd.Sum)
	}), []string{"AllReduce of 64 int32, sum", "AllReduce of 64 float64, sum"}, "AllReduce of "},
	// Nothing shows through MPI but that it does not end.
	{"type of an AllToAllV", differ(exchange[int32], exchange[float32]),
		[]string{"AllToAllV of int32", "AllToAllV of float32"}, ""},
	{"operation", differ(sumUp, func(w *spmd.World, x spmd.Buffer[int32]) error {
		return spmd.AllReduce(w.Comm(), x, x, spmd.Max)
	}),
		[]string{"AllReduce of 64 int32, sum", "AllReduce of 64 int32, max"}, "AllReduce of "},
	// It ends, with the numbers of any root.
	{"root", differ(broadcast(0), broadcast(1)),
		[]string{"Broadcast of 64 int32, root 0", "Broadcast of 64 int32, root 1"}, ""},
	{"scan", differ(scan(spmd.Scan[int32]), scan(spmd.ExScan[int32])),
		[]string{": Scan of 64 int32, sum", "ExScan of 64 int32, sum"}, "Scan of 64 int32 (sum)"},
	{"order", differ(inOrder(sumUp, barrier), inOrder(barrier, sumUp)),
		[]string{lineOf(sumUp) + ": AllReduce of 64 int32, sum", lineOf(barrier) + ": Barrier"},
		"AllReduce of 64 int32 (sum)"},
}

// lineOf is the place of a function that has one line.
func lineOf(fn collective) string {
	f := runtime.FuncForPC(reflect.ValueOf(fn).Pointer())
	file, line := f.FileLine(f.Entry())
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

// brought is what is said then. Without --check the ranks of one machine find it, the victim or
// another one, naming the other. On a busy machine rank 0 may hear of both calls first.
func brought(call string) []string {
	return []string{"spmd/fault_test.go:", "rank {rank}", call,
		"the ranks called different collectives: rank", " brought ", "host={host}"}
}

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

// gatherParts gathers two elements of each rank, some more of rank 0 and as many fewer of rank 1.
func gatherParts(more int) collective {
	return func(w *spmd.World, x spmd.Buffer[int32]) error {
		counts := slices.Repeat([]int{2}, w.Size())
		counts[0] += more
		counts[1] -= more
		return spmd.AllGatherV(w.Comm(), x.Slice(0, 2*w.Size()), x.Slice(60, 62), counts)
	}
}

func exchange[T spmd.Elem](w *spmd.World, _ int32s) error {
	x, err := spmd.Alloc[T](w, 4*w.Size())
	if err != nil {
		return err
	}
	counts := slices.Repeat([]int{2}, w.Size())
	return spmd.AllToAllV(w.Comm(), x.Slice(0, 2*w.Size()), x.Slice(2*w.Size(), 4*w.Size()), counts, counts)
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

// differ makes the victim make another call than the other ranks.
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

// inject returns the app's part of a row of the table, on a process that is no rank yet.
func inject(row string) func(ctx context.Context, w *spmd.World) error {
	rows := table()
	f := &rows[slices.IndexFunc(rows, func(f mishap) bool { return f.name == row })]
	rank := os.Getenv("OMPI_COMM_WORLD_RANK")
	if rank == "0" {
		// missing, it fails the test
		_ = os.WriteFile(filepath.Join(os.Getenv(faultEnv), "job"), []byte(os.Getenv("PMIX_NAMESPACE")), 0o666)
	}
	if f.before != nil && (cmp.Or(rank, "0") == strconv.Itoa(f.victim()) || f.second && rank == "1") {
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

// ready tells the test that a signal may come to any rank.
func ready(w *spmd.World, victim bool) error {
	err := spmd.Barrier(w.Comm())
	if victim {
		sayReady()
	}
	return err
}

func sayReady() { fmt.Fprintf(os.Stderr, "ready %d.\n", os.Getpid()) }

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

// waits is the call that the victim, which is the last rank or rank 0, does not make. One of the
// others waits in a stream.
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

// gathersMuch makes communicators, and sends long messages between all ranks.
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
	if err := s.HostFunc(func() error { sayReady(); select {} }); err != nil {
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

func splitsInCapture(_ context.Context, w *spmd.World, victim bool) error {
	s, err := w.NewStream("captured")
	if err != nil {
		return err
	}
	split := func() error { _, err := w.Comm().Split(0, 0); return err }
	if !victim {
		return split()
	}
	happens()
	if _, err = s.Capture(split); err != nil {
		oversleep() // it goes on without
	}
	return err
}

// exitsOnStream makes a function on a stream end its goroutine, as t.Fatal does.
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

// streamFails makes the error come while the victim waits for something else.
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

// streamFailsLate: run is over when the stream fails, and the others are in a collective on theirs.
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
