package spmd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

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

func killedAmongListeners(ctx context.Context, w *spmd.World, victim bool) error {
	early := spmd.Preempted(ctx)
	if err := spmd.Barrier(w.Comm()); err != nil {
		return err
	}
	if victim {
		die()
	}
	<-early
	return spmd.Barrier(w.Comm())
}

// compute ends never.
func compute() {
	for x := uint64(1); x != 0; { // odd for ever
		x *= 0x9e3779b97f4a7c15
	}
}

// killedInCollective makes rank 1 keep the others in the call.
func killedInCollective(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 64)
	if err != nil {
		return err
	}
	if victim {
		when("shm.(*NodeComm).Carry(", die)
	}
	if w.Rank() == 1 {
		oversleep()
	}
	return sumUp(w, x)
}

// killedAtExit makes rank 1 keep the others in Close.
func killedAtExit(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		when("verify.AtEnd(", die)
	}
	if w.Rank() == 1 {
		oversleep()
	}
	return nil
}

// suspendAll makes another process stop all ranks for longer than --timeout, as a closed laptop
// does, while they call collectives.
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
		sh := exec.Command("sh", "-c", fmt.Sprintf("kill -STOP %s; sleep %g; kill -CONT %s", list,
			1.5*faultTimeout.Seconds(), list))
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

func together(_ context.Context, w *spmd.World, victim bool) error {
	only, err := w.Comm().Split(w.Rank()/2*-1, 0)
	if err != nil {
		return err
	}
	if victim {
		happens()
	}
	for range parallel.Together(only, slices.Values([]int{1, 2})) {
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

// signalRows are the ends by a signal of programs that do something else meanwhile.
func signalRows() []mishap {
	const late = 30 * time.Second
	host := []string{"host={host}"}
	return []mishap{
		{name: "SIGTERM to mpirun amid collectives", within: late, run: sumsUp, args: []string{"--summary", "on"},
			steps: []step{{"ready", "mpirun", syscall.SIGTERM}},
			cause: "ended by signal: terminated", want: append([]string{"summary of "}, host...), traced: everyRank},
		{name: "SIGINT to mpirun amid collectives", more: true, within: late, run: sumsUp,
			steps: []step{{"ready", "mpirun", syscall.SIGINT}}, cause: "ended by signal: terminated", want: host},
		{name: "SIGTERM to a rank that leaves a loop", within: late, run: untilDone,
			steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "ended by signal: terminated",
			want: append([]string{"rank={rank}"}, host...)},
		{name: "SIGHUP to a rank that stops together", within: late, run: stopsTogether, args: everyLog,
			steps: []step{{"ready", "rank", syscall.SIGHUP}}, cause: "asked to end early", clean: true},
		{name: "SIGINT to a rank that stops together", more: true, within: late, run: stopsTogether,
			steps: []step{{"ready", "rank", syscall.SIGINT}}, cause: "ended by signal: interrupt",
			want: append([]string{"rank={rank}"}, host...)},
	}
}

// aloneRows are the waits of a rank that is its whole job. A signal and the time limit end each.
func aloneRows() (rows []mishap) {
	hang, late := faultTimeout+5*time.Second, 30*time.Second
	pipe := func(flag, in string, seen func()) func() {
		return func() {
			name := filepath.Join(os.Getenv(faultEnv), "pipe")
			if err := syscall.Mkfifo(name, 0o600); err != nil {
				panic(err)
			}
			os.Args = append(os.Args, flag, name)
			when(in, seen)
		}
	}
	ends := []step{{"ready", "rank", syscall.SIGTERM}}
	const start = "the start has not ended in "
	for i, how := range []string{"under mpirun", "without mpirun", "--ranks 1"} {
		for k, row := range []mishap{
			{name: "a Send to itself", within: hang, run: sendsItself, cause: "--- this job hangs: Send of 1048576 " +
				"float32 to rank 0", want: []string{"; the program is at spmd/fault_signals_test.go:"}},
			{name: "SIGTERM in a wait for a stream", within: late, run: endless, steps: ends,
				cause: "ended by signal: terminated; the program is at spmd/fault_test.go:"},
			{name: "a pipe without a reader", within: hang, before: pipe("--trace", "runfiles.Append(", happens),
				cause: start + faultTimeout.String(), want: []string{" is at spmd/", "runfiles.Append "}},
			{name: "SIGTERM in a Send to itself", within: late, run: sendsItself, steps: ends,
				cause: "ended by signal: terminated; the program is at spmd/fault_signals_test.go:"},
			{name: "SIGTERM at a pipe without a reader", within: late, steps: ends,
				before: pipe("--json", "runfiles.Append(", sayReady),
				cause:  "ended by signal: terminated during the start; rank 0 ",
				want:   []string{" is at spmd/", "runfiles.Append "}},
		} {
			row.name, row.ranks, row.alone, row.more = row.name+", "+how, 1, i > 0, k%3 != i
			if row.steps == nil {
				row.args = slices.Clone(hangFlag)
			}
			if strings.HasPrefix(row.name, "a pipe") && spmdtest.Device() == "host" {
				row.args = append(row.args, "--device", "auto") // no GPU is started yet
			}
			if i == 2 {
				row.args = append(row.args, "--ranks", "1")
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// sendsItself waits for ever: MPI keeps short messages only.
func sendsItself(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[float32](w, 1<<20)
	if err == nil {
		err = ready(w, victim)
	}
	if err != nil {
		return err
	}
	happens()
	return spmd.Send(w.Comm(), x, 0)
}

// sumsUp does not look at its context. The others wait for rank 0 most of the time.
func sumsUp(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 1)
	if err == nil {
		err = ready(w, victim)
	}
	for err == nil {
		if err = sumUp(w, x); w.Rank() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return err
}

// untilDone makes the ranks leave their loops after different steps.
func untilDone(ctx context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 1)
	if err == nil {
		err = ready(w, victim)
	}
	for err == nil && ctx.Err() == nil {
		err = sumUp(w, x)
	}
	return errors.Join(err, spmd.Barrier(w.Comm()))
}

// stopsTogether makes all ranks leave the loop after the same step.
func stopsTogether(ctx context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[int32](w, 1)
	stop := false
	if err == nil {
		stop, err = hostdata.AnyPreempted(ctx, w.Comm()) // from here on it listens
	}
	if err == nil {
		err = ready(w, victim)
	}
	for err == nil && !stop {
		if err = sumUp(w, x); err == nil {
			stop, err = hostdata.AnyPreempted(ctx, w.Comm())
		}
	}
	return errors.Join(err, spmd.Barrier(w.Comm()))
}

// hears has heard, and does not end.
func hears(ctx context.Context, w *spmd.World, victim bool) error {
	_ = spmd.Preempted(ctx)
	if err := ready(w, victim); err != nil {
		return err
	}
	select {}
}

// A process that was started by nohup does not end with its terminal.
func TestNohup(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 1)
	cmd := spmdtest.Command(t.Context(), t, 0, []string{appEnv + "=sleep"})
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	var err error
	if cmd.Path, err = exec.LookPath("sh"); err != nil {
		t.Fatal(err)
	}
	out := &testkit.Transcript{}
	cmd.Stdout, cmd.Stderr = out, out
	spmdtest.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status says it
		close(ended)
	}()
	if out.Wait("asleep", ended) {
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
			if err := cmd.Process.Signal(sig); err != nil {
				t.Error(err)
			}
		}
	}
	<-ended
	if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGTERM) ||
		!strings.Contains(out.String(), "ended by signal: terminated") {
		t.Errorf("status %d\n%s", status, out)
	}
}
