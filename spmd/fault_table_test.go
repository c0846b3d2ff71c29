package spmd_test

import (
	"context"
	"errors"
	"log"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

const (
	died = "the rank died: killed from outside"
	hung = "--- this job hangs"
)

var (
	diedWho  = []string{"rank={rank}", "host={host}", "pid={pid}"}
	everyLog = []string{"--log-ranks", "all"} // the victim's words, too
	hangFlag = []string{"--timeout", faultTimeout.String()}
	missing  = "NOT ARRIVED: rank {rank}"
)

// table is the faults of a rank of a job on the host. docs/faults.md has the same for users.
func table() []mishap {
	const soon, atOnce = 10 * time.Second, 5 * time.Second
	hang := faultTimeout + 5*time.Second
	rows := []mishap{
		{name: "killed in compute", gpu: true, within: soon, run: killedInCompute, cause: died, want: diedWho},
		{name: "killed in a collective", ranks: 4, within: soon, run: killedInCollective, cause: died,
			want: diedWho, traced: others},
		{name: "killed while all listen", more: true, within: soon, run: killedAmongListeners, args: everyLog,
			cause: died, want: diedWho, never: "asked to end early"},
		{name: "rank 0 killed in a collective", more: true, within: soon, first: true,
			run: killedInCollective, cause: died, want: diedWho, traced: others},
		{name: "killed at exit", more: true, ranks: 4, within: soon, run: killedAtExit, cause: died, want: diedWho},
		// Open MPI says it: there is no job yet.
		{name: "killed before MPI starts", within: soon, before: die,
			cause: "noticed that process rank {rank} with PID", want: []string{"on node {host} exited on signal 9"}},
		{name: "killed at start", within: soon, before: func() { when("cudampi.Start(", die) },
			cause: "noticed that process rank {rank} with PID", want: []string{"on node {host} exited on signal 9"}},

		// 6 MiB for each communicator, if it came from there.
		{name: "a small /dev/shm", ranks: 8, within: soon, shell: "mount -t tmpfs -o size=8m tmpfs /dev/shm",
			args: []string{"--rows", "8"}, before: happens, cause: "collectives=mpi-host", clean: true},
		{name: "no room for MPI's shared memory", within: atOnce, first: true, double: "fullatstart.c",
			cause: "MPI cannot start: there is no room for the memory that its processes share",
			want:  []string{"rank {rank} (host {host}, pid {pid})"}},
		{name: "a container for each rank, with its own users", ranks: 3, within: soon,
			apart: []string{"unshare", "-U", "-r"}, before: happens, run: gathersMuch,
			cause: "this rank is in a container of its own, with its own user namespace", clean: true},
		{name: "a container for each rank, with its own processes", ranks: 3, within: soon,
			apart: []string{"unshare", "-p", "--fork"}, before: happens, run: gathersMuch,
			cause: "small collectives go through messages, not through shared memory",
			want: []string{"this rank is in a container of its own, with its own process namespace",
				"rank 1: "}, clean: true},
		{name: "TMPDIR is full", within: soon, first: true, shell: `mount -t tmpfs -o size=1m tmpfs "$TMPDIR"`,
			before: happens, cause: "app: TMPDIR: ",
			want: []string{" MiB free, and Open MPI needs 9 to start: make room there, or set TMPDIR to " +
				"another folder\n"}},
		{name: "a limit on the size of files", within: soon, first: true, shell: "ulimit -f 100", before: happens,
			cause: "app: files may have 100 KiB (ulimit -f), and Open MPI needs 4200 to start: ulimit -f unlimited\n"},
		{name: "bad flags on many ranks", ranks: 64, within: soon, first: true, args: []string{"--colour"},
			before: happens, cause: "app: unknown flag: --colour"},
		{name: "another flag on one rank", gpu: true, within: atOnce,
			before: func() { happens(); os.Args = append(os.Args, "--seed", "7") },
			cause:  "app: the ranks were started differently: --seed is 42 on ",
			want:   []string{", 7 on rank {rank}\n"}},

		{name: "stopped before MPI starts", within: hang, args: hangFlag,
			before: func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) },
			cause:  "the start has not ended in " + faultTimeout.String()},
		{name: "ranks 0 and 1 stopped before MPI starts", more: true, within: hang + 6*time.Second,
			first: true, second: true, args: hangFlag,
			before: func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) },
			cause:  "the start has not ended in " + faultTimeout.String()},
		// In the middle of MPI_Init: one in some twenty of Open MPI 4.1's mpirun hangs then.
		{name: "stopped at start", rare: true, within: hang, args: hangFlag, before: func() {
			when("cudampi.Start(", func() { happens(); _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) })
		}, cause: "the start has not ended in " + faultTimeout.String()},
		{name: "stopped", gpu: true, within: hang, args: hangFlag, run: stopped, cause: hung,
			want: []string{missing, "rank {rank} (host {host}, pid {pid}): does not answer; its process " +
				"is T (stopped)", "AllReduce of 1000 float32 (sum)"}},
		{name: "rank 0 stopped", more: true, within: hang, first: true, args: hangFlag, run: stopped,
			cause: hung, want: []string{missing,
				"rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "all suspended beyond --timeout", within: hang + 5*time.Second, args: hangFlag,
			run: suspendAll, cause: "went on after all ranks had been stopped", clean: true},
		{name: "asleep", local: true, gpu: true, within: hang, args: hangFlag, run: asleep, cause: hung,
			want: []string{missing, "rank {rank} (host {host}, pid {pid}): running, at spmd/fault_test.go:", "[sleep]",
				"spmd_test.oversleep", "AllReduce of 1000 float32 (sum)", `stream "work"`}, traced: everyRank},
		{name: "asleep in a goroutine", more: true, within: hang, args: hangFlag, run: asleepAside,
			cause: hung, want: []string{missing, "another goroutine at spmd/fault_test.go:", "[sleep]"}},
		{name: "asleep while others end", local: true, gpu: true, within: hang, args: hangFlag, run: stays,
			cause: hung, want: []string{"the program has ended here, and not on every rank",
				"spmd_test.oversleep", "rank {rank} (host {host}, pid {pid})"}},
		{name: "stopped at the end of MPI", within: hang, args: hangFlag, double: "stopsatend.c",
			cause: hung, want: []string{"the program has ended here, and not on every rank",
				"rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "rank 0 stopped at the end of MPI", more: true, within: hang, first: true, args: hangFlag,
			double: "stopsatend.c", cause: hung,
			want: []string{"the program has ended here, and not on every rank",
				"rank {rank} (host {host}, pid {pid}): does not answer; its process is T (stopped)"}},
		{name: "a message that does not come", local: true, ranks: 4, within: hang, args: hangFlag,
			run: unsent, cause: hung, want: []string{"NOT ARRIVED: ranks 0, {rank}",
				"rank 0 waits in Recv of 7 int32 from rank {rank}", "[sleep]"}},
		{name: "a host function that never returns", local: true, within: hang, args: hangFlag,
			run: endless, cause: hung, want: []string{missing,
				`stream "endless": 1 command waits, the first is HostFunc from spmd/fault_test.go:`}},

		{name: "error", local: true, gpu: true, within: atOnce,
			run:   failing(func() error { return errors.New("the victim fails") }),
			cause: "the victim fails", want: []string{"rank={rank}", "host={host}", "summary of "},
			args: []string{"--summary", "on"}, traced: everyRank},
		{name: "a Split that one rank refuses", local: true, ranks: 3, within: soon, run: splitsInCapture,
			cause: "rank {rank} was refused Split, and goes on without it: spmd/fault_test.go:",
			want:  []string{"Split blocks, and stands in the middle of a capture", "is in Split"}},
		{name: "panic", local: true, gpu: true, within: atOnce,
			run: failing(func() error { panic("the victim panics") }), cause: "panic: the victim panics",
			want: []string{"rank={rank}", "fault_table_test.go:", "goroutine "}},
		{name: "panic on every rank", more: true, within: atOnce,
			run:   func(context.Context, *spmd.World, bool) error { happens(); panic("all panic") },
			cause: "ERR panic: all panic", want: []string{"fault_table_test.go:"}},
		{name: "nil pointer", more: true, gpu: true, within: atOnce,
			run:   failing(func() error { var p *int; *p = 1; return nil }),
			cause: "panic: runtime error: invalid memory address or nil pointer dereference",
			want:  []string{"rank={rank}", "fault_table_test.go:"}},
		{name: "panic in a goroutine", gpu: true, within: atOnce,
			run:   failing(func() error { go func() { panic("a goroutine panics") }(); select {} }),
			cause: "panic: a goroutine panics", want: []string{"fault_table_test.go:", "rank={rank}"}},
		{name: "Goexit", local: true, within: atOnce, run: failing(func() error { runtime.Goexit(); return nil }),
			cause: "the program has ended its goroutine (runtime.Goexit)", want: []string{"rank={rank}"}},
		{name: "Goexit on a stream", local: true, gpu: true, within: atOnce, run: exitsOnStream,
			cause: "runtime.Goexit ended the goroutine",
			want:  []string{`stream "exits"`, "fault_test.go:", "rank={rank}"}},
		{name: "log.Fatal", within: atOnce, run: failing(func() error {
			log.Fatal("the victim is fatal")
			return nil
		}), cause: "the victim is fatal", want: append([]string{died}, diedWho...)},
		{name: "os.Exit(0)", gpu: true, within: atOnce, run: failing(func() error { os.Exit(0); return nil }),
			cause: died, want: append([]string{"os.Exit"}, diedWho...)},
		{name: "a stream fails", more: true, gpu: true, within: atOnce, run: streamFails,
			cause: "the stream fails", want: []string{`stream "late"`, "fault_test.go:", "rank={rank}"}},
		{name: "a stream fails after the end", local: true, gpu: true, within: atOnce, run: streamFailsLate,
			cause: "the stream fails", want: []string{`stream "late"`, "fault_test.go:", "rank={rank}"}},
		{name: "Together out of its communicator", local: true, gpu: true, ranks: 3, within: atOnce,
			run: together, cause: "not in the communicator", want: []string{"Together", "rank={rank}"}},

		{name: "SIGTERM to mpirun", within: 30 * time.Second, run: sleeps,
			steps: []step{{"ready", "mpirun", syscall.SIGTERM}}, cause: "ended by signal: terminated",
			want: []string{"host={host}"}},
		{name: "SIGTERM to a rank", within: 30 * time.Second, run: sleeps,
			steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "ended by signal: terminated",
			want: []string{"rank={rank}", "host={host}"}, args: []string{"--summary", "on"}, traced: everyRank},
		{name: "SIGTERM to a rank that listens", more: true, within: 30 * time.Second, run: listens, args: everyLog,
			steps: []step{{"ready", "rank", syscall.SIGTERM}}, cause: "asked to end early", clean: true},
		{name: "SIGUSR1 to mpirun", within: 30 * time.Second, run: listens,
			steps: []step{{"ready", "mpirun", syscall.SIGUSR1}}, cause: "asked to end early", clean: true},
		{name: "SIGUSR1 at start", within: 30 * time.Second, run: listens, args: everyLog,
			before: asksAtStart, cause: "asked to end early, before the program listened", clean: true},
		{name: "SIGUSR1 at start, nobody listens", more: true, within: 30 * time.Second, run: sleeps,
			before: asksAtStart, cause: "ended by signal: user defined signal 1",
			want: []string{"rank={rank}", "host={host}"}},
		{name: "SIGTERM twice", within: 30 * time.Second, run: hears, args: everyLog,
			steps: []step{{"ready", "rank", syscall.SIGTERM}, {"asked to end early", "rank", syscall.SIGTERM}},
			cause: "ended by signal: terminated", want: []string{"asked to end early", "rank={rank}"}},
		{name: "SIGQUIT shows and goes on", within: 30 * time.Second, run: listens, args: everyLog,
			steps: []step{{"ready", "rank", syscall.SIGQUIT}, {"\n---\n", "rank", syscall.SIGTERM}},
			cause: "--- shown on request", want: []string{"spmd_test.listens", "host {host}"}, clean: true},
	}
	longer := mishap{name: "a message of another length", gpu: true, within: atOnce, run: overlong,
		cause: "5 int32 elements, 4 expected", want: []string{"rank=0", "fault_test.go:"}}
	if spmdtest.Device() != "host" {
		longer.cause, longer.want = "a message from rank {rank} has 20 bytes, and Recv takes 16",
			[]string{"rank=0", "fault_test.go:"}
	}
	rows = append(rows, longer)
	for _, c := range contracts {
		const different = "the ranks called different collectives"
		both := append([]string{"rank 0 at spmd/fault_test.go:", "rank {rank} at spmd/fault_test.go:"}, c.said...)
		// Whichever of the other ranks it is compared with first.
		row := mishap{name: "other " + c.what, gpu: true, within: atOnce, run: c.run, cause: different,
			want: append([]string{" at spmd/fault_test.go:"}, both[1:]...)}
		if c.brought != "" && spmdtest.Device() == "host" {
			row.or, row.want = row.want, brought(c.brought)
		}
		checked := mishap{name: "other " + c.what + ", --check", local: true, gpu: true, within: atOnce,
			args: []string{"--check"}, run: c.run, cause: different, want: both}
		row.more = c.what != "collective" && c.what != "count"
		checked.more = c.what != "order"
		rows = append(rows, row, checked)
		if c.what == "count" { // as ranks of several nodes: MPI says that a message is too long
			row.name, row.or = row.name+", ranks that share no memory", nil
			row.apart = []string{"unshare", "-p", "--fork"}
			row.gpu, row.ranks, row.want = false, 3, append([]string{"rank {rank} at spmd/fault_test.go:"}, c.said...)
			rows = append(rows, row)
		}
	}
	// Without --check the end depends on MPI.
	rows = append(rows, mishap{name: "other counts, --check", local: true, ranks: 3, gpu: true,
		within: atOnce, args: []string{"--check"}, run: differ(gatherParts(0), gatherParts(1)),
		cause: "the ranks called different collectives",
		want: []string{"rank 0 at spmd/fault_test.go:", ", counts[0] is 2; rank {rank} at spmd/fault_test.go:",
			", counts[0] is 3 ("}})
	return slices.Concat(rows, signalRows(), aloneRows(), returnRows(), doorRows(), messageRows())
}
