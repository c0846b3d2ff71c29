package spmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/launcher"
	"lockstep/internal/mpirun"
	"lockstep/spmd"
	_ "lockstep/spmd/dashboard" // --dashboard
	"lockstep/spmd/internal/transport/carriers"
	"lockstep/spmd/spmdtest"
)

// appEnv says what the program "app" does.
const appEnv = "SPMD_TEST_APP"

func TestMain(m *testing.M) {
	if os.Getenv("FAKECUDA_DEVICES") != "" { // a rank on test doubles. Each start would clear tens of megabytes
		carriers.StagedSizes.Piece, carriers.StagedSizes.Message = 256<<10, 1<<20
	}
	spmdtest.Main(m, func() { app(os.Getenv(appEnv)) })
}

// rankArgs are arguments of single ranks of the app, as mpirun gives them to several programs:
// "1:--rows=5;2:--json=x".
const rankArgs = "SPMD_TEST_RANK_ARGS"

func app(what string) {
	for _, set := range strings.Split(os.Getenv(rankArgs), ";") {
		if rank, arg, ok := strings.Cut(set, ":"); ok && rank == os.Getenv("OMPI_COMM_WORLD_RANK")+
			os.Getenv("PMI_RANK") {
			os.Args = append(os.Args, arg)
		}
	}
	fs := pflag.NewFlagSet("app", pflag.ExitOnError)
	rows := fs.Int("rows", 4, "rows")
	fs.String("scratch", "", "a folder on each node")
	spmd.MayDiffer(fs, "scratch")
	gpuPrepare(what)
	fault, isFault := strings.CutPrefix(what, "fault ")
	atOne := localFaults[fault]
	inFault := func(context.Context, *spmd.World) error { return nil }
	if isFault && atOne == nil {
		inFault = inject(fault)
	}
	spmd.Main(fs, func(ctx context.Context, w *spmd.World) error {
		last := w.Rank() == w.Size()-1
		switch what {
		case "sum":
			x, err := spmd.Alloc[float32](w, 1)
			if err != nil {
				return err
			}
			x.Set(0, float32(w.Rank()))
			if err := spmd.AllReduce(w.Comm(), x, x, spmd.Sum); err != nil {
				return err
			}
			w.Log().Info().Float32("sum", x.At(0)).Msg("done")
			return w.Emit(map[string]any{"app": "app", "sum": x.At(0), "ranks": w.Size()})
		case "shown":
			return shown(ctx, w)
		case "one fails":
			return oneFails(w)
		case "checked groups":
			return checkedGroups(w)
		case "paths":
			return symmetricCalls(w)
		case "peer branches":
			return peerBranches(w)
		case "mixed streams":
			return mixedStreams(w)
		case "different numbers":
			return differentNumbers(w)
		case "line":
			return shiftLine(w)
		case "peer messages":
			return peerMessages(w)
		case "a message too long", "a message too short":
			return otherLength(w, what)
		case "peer sums":
			return peerSums(w)
		case "usage":
			return spmd.Usage(errors.New("no such data"))
		case "fuzz":
			return fuzz(w)
		case "soak":
			return soak(w)
		case "preempted":
			early := spmd.Preempted(ctx)
			fmt.Fprintln(os.Stderr, "asleep")
			<-early
			return nil
		case "preempted at the end":
			return preemptedAtTheEnd(ctx, w)
		case "sleep":
			fmt.Fprintln(os.Stderr, "asleep")
			<-ctx.Done()
			return context.Cause(ctx)
		case "stubborn":
			if err := threeFills(w); err != nil {
				return err
			}
			fmt.Fprintln(os.Stderr, "asleep")
			select {}
		}
		if atOne != nil {
			if w.Rank() == 1 {
				return atOne(ctx, w)
			}
			return spmd.Barrier(w.Comm())
		}
		if isFault {
			return inFault(ctx, w)
		}
		if err := gpuFault(w, what, last); err != nil {
			return err
		}
		return spmd.Barrier(w.Comm()) // where the others wait for the one that failed
	}, func(ranks int) error {
		if *rows < ranks {
			return fmt.Errorf("--rows %d: fewer than the %d ranks", *rows, ranks)
		}
		return nil
	})
}

// One rank needs no other program of the machine: no ssh, which Open MPI would look for.
func TestMainWithoutPath(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 1)
	if status, out := run(t, 0, "sum", []string{"PATH=" + t.TempDir()}); status != 0 ||
		!strings.Contains(out, "sum=0") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// run runs the app and returns its exit status and all it wrote.
func run(t *testing.T, n int, what string, env []string, args ...string) (status int, out string) {
	t.Helper()
	p := spmdtest.Program(t, n, append([]string{appEnv + "=" + what}, env...), args...)
	return p.Status, p.Stdout + p.Stderr
}

// --version is answered once, with any other flags, and nothing starts. A process alone answers,
// whatever rank its environment has.
func TestMainVersion(t *testing.T) {
	t.Parallel()
	for _, n := range append(spmdtest.Ranks(t, 1, 3), 0) {
		env := []string{appEnv + "=sum"}
		if n == 0 && !launcher.Launched() {
			env = append(env, "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4")
			status, out := run(t, 0, "sum", env[1:], "--help")
			if status != 0 || !strings.Contains(out, "Flags of app:") {
				t.Errorf("alone, --help: status %d\n%s", status, out)
			}
		}
		p := spmdtest.Program(t, n, env, "--version", "--device", "none such")
		want := regexp.MustCompile(`^app, of Lockstep ` + regexp.QuoteMeta(spmd.Version) +
			`[^\n]*, go[^\n]*, linux/\w+\nMPI: \S+.* \d[^\n]*\nCUDA: [^\n]+\nNVRTC: [^\n]+\nNCCL: ` +
			`[^\n]+\ncuDNN: [^\n]+\n$`)
		if p.Status != 0 || !want.MatchString(p.Stdout) || strings.Contains(p.Stderr, "INF start") {
			t.Errorf("%d ranks: status %d, %q\n%s", n, p.Status, p.Stdout, p.Stderr)
		}
	}
}

func TestMainRunsTheProgram(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 3)
	for _, n := range []int{0, 1, 3} {
		file := filepath.Join(t.TempDir(), "out.json")
		status, out := run(t, n, "sum", nil, "--json", file, "--log-format", "json")
		if status != 0 || strings.Count(out, `"message":"start"`) != 1 || strings.Count(out, `"message":"done"`) != 1 {
			t.Fatalf("%d ranks: status %d\n%s", n, status, out)
		}
		for _, want := range []string{`"launcher":`, `"nodes":1`, `"device":`, `"collectives":`, `"why":`,
			`"startup_ms":{`} {
			if !strings.Contains(out, want) {
				t.Errorf("the start line does not say %s:\n%s", want, out)
			}
		}
		b, err := os.ReadFile(file)
		spmdtest.Must(t, err)
		var got struct {
			Sum   float32
			Ranks int
		}
		if err := json.Unmarshal(b, &got); err != nil || got.Ranks != max(n, 1) || got.Sum != float32(n*(n-1)/2) {
			t.Errorf("%d ranks wrote %q, %v", n, b, err)
		}
		if status, out := run(t, n, "sum", nil, "--json", file); status != 0 {
			t.Fatalf("%d ranks again: status %d\n%s", n, status, out)
		}
		if again, err := os.ReadFile(file); err != nil || string(again) != string(b)+string(b) {
			t.Errorf("%d ranks again wrote %q, %v: want a second line, like the first", n, again, err)
		}
	}
	if status, out := run(t, 2, "sum", nil, "--log-ranks", "all", "--log-format", "json"); status != 0 ||
		strings.Count(out, `"done"`) != 2 {
		t.Errorf("--log-ranks all: status %d\n%s", status, out)
	}
	for _, mode := range []string{"off", "sample", "on"} {
		if status, out := run(t, 2, "sum", nil, "--check="+mode); status != 0 {
			t.Errorf("--check=%s of a program in order: status %d\n%s", mode, status, out)
		}
	}
	if status, out := run(t, 2, "sum", nil, "--help"); status != 0 || strings.Count(out, "Flags of app:") != 1 ||
		!strings.Contains(out, "--collectives") {
		t.Errorf("--help: status %d\n%s", status, out)
	}
}

// TestBadInput: one line for the whole job, status 2.
func TestBadInput(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		n    int
		what string
		env  []string
		args []string
		want string
	}{
		{"an unknown flag", 3, "sum", nil, []string{"--colour", "blue"}, "unknown flag: --colour"},
		{"nearly a flag", 2, "sum", nil, []string{"--time-out", "3s"},
			"unknown flag: --time-out; did you mean --timeout?"},
		{"a value that needs an equals sign", 2, "sum", nil, []string{"--check", "on"},
			`unexpected argument "on": type --check=on`},
		{"no time at all", 2, "sum", nil, []string{"--timeout", "0"}, "--timeout 0: must be at least 100ms"},
		{"mpirun's flag behind the program", 2, "sum", nil, []string{"--rows", "3", "-np", "4"},
			"-np is a flag of mpirun, before the program; type: mpirun -np 4 app"},
		{"mpirun's flag with its value", 0, "sum", nil, []string{"--map-by=node"}, "type: mpirun --map-by=node app"},
		{"srun's flag", 0, "sum", nil, []string{"--mpi=pmix"}, "type: srun --mpi=pmix app"},
		{"torchrun's flag", 0, "sum", nil, []string{"--nproc_per_node", "8"}, "type: mpirun -np 4 app"},
		{"a value of the wrong type", 2, "sum", nil, []string{"--rows", "many"}, `invalid argument "many"`},
		{"an argument that is no flag", 2, "sum", nil, []string{"more"}, `unexpected argument "more"`},
		{"no such device", 2, "sum", nil, []string{"--device", "tpu"}, "--device tpu: want auto, cuda, host"},
		{"flags that contradict each other", 2, "sum", nil, []string{"--device", "host", "--collectives", "nccl"},
			"does not go with"},
		{"a way for GPU memory on the host", 2, "sum", nil, []string{"--device", "host", "--collectives", "mpi-peer"},
			"--collectives mpi-peer does not go with --device host"},
		{"no such collectives", 0, "sum", nil, []string{"--collectives", "mpi-fast"},
			"want auto, nccl, mpi, mpi-peer, mpi-aware, host-staged"},
		{"a way that is gone", 0, "sum", nil, []string{"--collectives", "mpi-staged"},
			"--collectives mpi-staged is gone: host-staged is"},
		{"a check that is gone", 0, "sum", nil, []string{"--check=both"}, "--check both is gone: run again with"},
		{"a device that is not there", 2, "sum", nil, []string{"--device", "cuda"}, "--device cuda"},
		{"a list of ranks", 0, "sum", nil, []string{"--log-ranks", "3-1"}, "--log-ranks 3-1"},
		{"more ranks than rows", 3, "sum", nil, []string{"--rows", "2"}, "--rows 2: fewer than the 3 ranks"},
		{"an error that run marks", 3, "usage", nil, nil, "no such data"},
		{"a result file that cannot be made", 2, "sum", nil, []string{"--json", "/dev/null/x"},
			"--json: open /dev/null/x"},
		{"a mode of --check", 0, "sum", nil, []string{"--check=often"}, "want off, sample, on, bounds"},
		{"no time", 0, "sum", nil, []string{"--timeout", "1ms"}, "--timeout 1ms: must be at least 100ms"},
		{"N worlds of one", 0, "sum", []string{"SLURM_PROCID=0", "SLURM_NTASKS=4"}, nil,
			"SLURM_NTASKS says 4 tasks, but MPI has a world of 1"},
		{"N worlds of one under srun", 0, "sum", []string{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"}, nil,
			"srun --mpi=pmix"},
		{"one of them alone, of Slurm", 0, "sum", []string{"SLURM_PROCID=2", "SLURM_NTASKS=3"}, nil,
			"SLURM_NTASKS says"},
		{"of Open MPI", 0, "sum", []string{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4"}, nil,
			"OMPI_COMM_WORLD_SIZE says 4 tasks"},
		{"of MPICH", 0, "sum", []string{"PMI_RANK=2", "PMI_SIZE=4"}, nil, "PMI_SIZE says 4 tasks"},
		{"of Kubeflow", 0, "sum", []string{"RANK=2", "WORLD_SIZE=4"}, nil, "WORLD_SIZE says 4 tasks"},
	} {
		if slices.Contains(tc.args, "cuda") && spmdtest.Device() != "host" {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			spmdtest.Ranks(t, max(tc.n, 1))
			status, out := run(t, tc.n, tc.what, tc.env, tc.args...)
			if status != 2 || !strings.Contains(out, tc.want) || strings.Count("\n"+out, "\napp: ") != 1 {
				t.Errorf("status %d, want 2 and one line with %q:\n%s", status, tc.want, out)
			}
		})
	}
}

// Ranks of one process are no more than that in a batch script of several tasks, and in a task they
// are refused.
func TestRanksInBatchScript(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 2)
	script := []string{"SLURM_PROCID=0", "SLURM_NTASKS=4"}
	if status, out := run(t, 0, "sum", script, "--ranks", "2"); status != 0 {
		t.Errorf("in a batch script: status %d\n%s", status, out)
	}
	if status, out := run(t, 0, "sum", append(script, "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0"),
		"--ranks", "2"); status != 2 || !strings.Contains(out, "says 4 tasks already") {
		t.Errorf("in a task: status %d\n%s", status, out)
	}
}

// preemptedAtTheEnd: rank 1 sends the signal to rank 0 when that has left its program and waits for
// rank 1 to leave.
func preemptedAtTheEnd(ctx context.Context, w *spmd.World) error {
	pids, err := spmd.AllocPinned[int64](w, 2)
	if err != nil {
		return err
	}
	mine := pids.Slice(w.Rank(), w.Rank()+1)
	if err := mine.SetAll(int64(os.Getpid())); err != nil {
		return err
	}
	if err := spmd.AllGather(w.Comm(), pids, mine); err != nil {
		return err
	}
	left := filepath.Join(os.Getenv("TMPDIR"), "left")
	if w.Rank() == 0 {
		spmd.Preempted(ctx)
		return os.WriteFile(left, nil, 0o666)
	}
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(left); err == nil {
			return syscall.Kill(int(pids.At(0)), syscall.SIGTERM)
		}
	}
	return context.Cause(ctx)
}

// A request to end early that comes when the program has ended changes nothing: other ranks may
// have had it before.
func TestSignalAtTheEnd(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 2)
	if status, out := run(t, 2, "preempted at the end", []string{"TMPDIR=" + t.TempDir()}); status != 0 {
		t.Errorf("status %d\n%s", status, out)
	}
}

// TestStartedDifferently: settings that the ranks must have in common are compared before the
// program runs; the rest may differ.
func TestStartedDifferently(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 3)
	const what = "the ranks were started differently: "
	for _, tc := range []struct{ name, args, want string }{
		{"a flag of the application", "1:--rows=5", what + "--rows is 4 on ranks 0, 2, 5 on rank 1\n"},
		{"a common flag", "0:--timeout=1m", what + "--timeout is 1m0s on rank 0, 10m0s on ranks 1-2\n"},
		{"several flags, and odd values", "1:--rows=5;0:--seed=1;2:--rows=6",
			what + "--rows is 4 on rank 0, 5 on rank 1, 6 on rank 2; --seed is 1 on rank 0, 42 on ranks 1-2\n"},
		{"the device, which is compared before it is opened", "1:--device=auto",
			what + "--device is host on ranks 0, 2, auto on rank 1\n"},
		{"what may differ", "1:--json=/dev/null;1:--log-level=error;2:--log-format=json;0:--scratch=/tmp", ""},
		{"a default, said by one", "2:--rows=4", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			status, out := run(t, 3, "sum", []string{rankArgs + "=" + tc.args}, "--device", "host", "--timeout", "10m")
			if tc.want == "" && status != 0 ||
				tc.want != "" && (status != 2 || strings.Count(out, "app: "+tc.want) != 1 ||
					strings.Count(out, what) != 1) {
				t.Errorf("status %d, want one line %q\n%s", status, tc.want, out)
			}
		})
	}
}

func TestSignal(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 2)
	inProcess := []string{"--ranks", "3"} // goroutines, each of which takes a GPU of its own
	if spmdtest.Device() != "host" {
		inProcess[1] = "2"
	}
	for _, tc := range []struct {
		what string
		n    int
		sig  syscall.Signal
		want int // -1: any but 0
		args []string
	}{
		{"sleep", 0, syscall.SIGTERM, 128 + 15, nil}, {"stubborn", 0, syscall.SIGTERM, 128 + 15, nil},
		{"sleep", 2, syscall.SIGTERM, -1, nil},
		{"preempted", 0, syscall.SIGTERM, 0, nil}, {"preempted", 0, syscall.SIGUSR1, 0, nil},
		{"sleep", 0, syscall.SIGTERM, 128 + 15, inProcess},
		{"stubborn", 0, syscall.SIGINT, 128 + 2, append(inProcess, "--summary", "on")},
		{"preempted", 0, syscall.SIGTERM, 0, inProcess},
	} {
		ctx := mpirun.Patience(t)
		cmd := spmdtest.Command(ctx, t, tc.n, []string{appEnv + "=" + tc.what}, tc.args...)
		state := make(chan string, 1) // of a process that does not end
		cmd.Cancel = func() error {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // its signals, too
			state <- fmt.Sprint(string(b), err)
			return cmd.Process.Signal(syscall.SIGQUIT) // it shows where it is
		}
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.StderrPipe()
		spmdtest.Must(t, err)
		spmdtest.Must(t, mpirun.Start(cmd))
		text := ""
		for buf := make([]byte, 4096); !strings.Contains(text, "asleep"); {
			n, err := out.Read(buf)
			if text += string(buf[:n]); err != nil {
				t.Fatalf("it ended before it slept: %s", text)
			}
		}
		spmdtest.Must(t, cmd.Process.Signal(tc.sig))
		var rest bytes.Buffer
		_, _ = rest.ReadFrom(out)
		_ = cmd.Wait()
		if ctx.Err() != nil {
			t.Fatalf("%s on %d ranks went on after %v: %s\n%s", tc.what, tc.n, tc.sig, &rest, <-state)
		}
		if status := cmd.ProcessState.ExitCode(); status != tc.want && (tc.want >= 0 || status == 0) {
			t.Errorf("%s on %d ranks: status %d after %v", tc.what, tc.n, status, tc.sig)
		}
		said := "ended by signal: " + tc.sig.String()
		if tc.want == 0 {
			said = "asked to end early"
		}
		if len(tc.args) > 2 && !strings.Contains(rest.String(), "summary of "+tc.args[1]+" ranks in ") {
			t.Errorf("%s on %d ranks: no summary: %s", tc.what, tc.n, &rest)
		}
		if threeTimes := regexp.MustCompile(`(?m)^    Fill +3 +48 B +\d`); len(tc.args) > 2 &&
			!threeTimes.MatchString(rest.String()) {
			t.Errorf("%s on %d ranks: the summary does not name what was done: %s", tc.what, tc.n, &rest)
		}
		if tc.n == 0 && !strings.Contains(rest.String(), said) {
			t.Errorf("%s says %q", tc.what, rest.String())
		}
	}
}

// threeFills is work that has a row in the summary.
func threeFills(w *spmd.World) error {
	s, err := w.NewStream("work")
	x, err2 := spmd.Alloc[float32](w, 4)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	return errors.Join(spmd.Fill(s, x, 1), spmd.Fill(s, x, 2), spmd.Fill(s, x, 3), s.Synchronize())
}
