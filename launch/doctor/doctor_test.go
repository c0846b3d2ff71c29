package doctor

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/cli"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// launchEnv makes this test binary the launch command: a copy of it lies beside launch-probe, as
// bin/launch does.
const launchEnv = "LOCKSTEP_DOCTOR_LAUNCH"

func TestMain(m *testing.M) {
	if os.Getenv(launchEnv) == "" {
		status := m.Run()
		os.RemoveAll(binaries.dir)
		os.Exit(status)
	}
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(os.Args[2:]) // behind "launch doctor"
	code, say := cli.ExitStatus(cmd.Execute())
	if say {
		fmt.Fprintln(os.Stderr, "launch: an error that is no status")
	}
	os.Exit(code)
}

// want is a finding that must be there, with words that its line holds.
type want struct {
	level string
	ranks []int
	words []string
}

func (w want) among(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool {
		return f.Level == w.level && slices.Equal(f.Ranks, w.ranks) &&
			!slices.ContainsFunc(w.words, func(word string) bool {
				return !strings.Contains(f.String(), word)
			})
	})
}

// the second half lives on another disk
const onNode1 = `case $OMPI_COMM_WORLD_RANK in 2|3) cd node1;; *) cd node0;; esac; exec `

// Each set-up is really broken, as far as one machine can be.
var setups = []struct {
	name    string
	ranks   int
	wrap    string // shell, run by each rank in the set's folder: "$@" is launch doctor; "" runs that
	args    []string
	prepare func(s *set)
	want    []want
}{
	{name: "alone and sound"},
	{name: "four ranks and sound", ranks: 4, args: []string{"--", "sh"}},
	{name: "two nodes' program and launch alike", ranks: 4, wrap: onNode1 + `./launch doctor --json -- ./prog`,
		prepare: func(s *set) {
			twoNodes(s, "prog", "prog")
		}},
	{name: "the program is missing on a node", ranks: 4, wrap: onNode1 + `./launch doctor --json -- ./prog`,
		prepare: func(s *set) {
			twoNodes(s, "prog", "")
		}, want: []want{{Fail, []int{2, 3}, []string{"node1/prog", "no such file", "same path"}}}},
	{name: "another build of the program on a node", ranks: 4, wrap: onNode1 + `./launch doctor --json -- ./prog`,
		prepare: func(s *set) {
			twoNodes(s, "prog", "other")
		}, want: []want{{Fail, []int{2, 3}, []string{"checksum of the program", "here and", "elsewhere"}}}},
	{name: "the program is not executable on a node", ranks: 4, wrap: onNode1 + `./launch doctor --json -- ./prog`,
		prepare: func(s *set) {
			twoNodes(s, "prog", "prog")
			testkit.Must(s.t, os.Chmod(filepath.Join(s.dir, "node1/prog"), 0o644))
		}, want: []want{{Fail, []int{2, 3}, []string{"not executable", "chmod +x"}}}},
	{name: "the program is built for another architecture on a node", ranks: 4,
		wrap: onNode1 + `./launch doctor --json -- ./launch.s390`, prepare: func(s *set) {
			twoNodes(s, "prog", "prog")
			foreign := func(b []byte) []byte { b[18], b[19] = byte(elf.EM_S390), 0; return b } // e_machine
			s.replace("launch", "node1/launch.s390", foreign)
			s.replace("launch", "node0/launch.s390", func(b []byte) []byte { return b })
		}, want: []want{{Fail, []int{2, 3}, []string{"built for s390"}}}},
	{name: "the program is linked with MPICH", ranks: 2, args: []string{"--", "./mpich"}, prepare: func(s *set) {
		s.write("mpich.c", "int MPI_Init(int *, char ***);\nint main(void) { return MPI_Init(0, 0); }\n")
		cmd := exec.Command("cc", "-o", "mpich", "mpich.c", "-l:libmpich.so.12")
		cmd.Dir = s.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			s.t.Skipf("no MPICH to link with: %v\n%s", err, out)
		}
	}, want: []want{{Fail, []int{0, 1}, []string{"libmpich.so.12", "mpirun.mpich"}}}},
	{name: "another build of launch on a node", ranks: 4, wrap: onNode1 + `./launch doctor --json`,
		prepare: func(s *set) {
			twoNodes(s, "prog", "prog")
			s.replace("launch", "node1/launch", func(b []byte) []byte { return append(b, "another build"...) })
		}, want: []want{{Fail, []int{2, 3}, []string{"checksum of launch", "same build"}}}},
	{name: "MPICH's launcher", ranks: 3, prepare: func(s *set) {
		path, err := exec.LookPath("mpirun.mpich")
		if err != nil {
			s.t.Skip(err)
		}
		s.cmd.Path, s.cmd.Args = path, append([]string{path}, s.cmd.Args[2:]...) // it knows no --noprefix
	}, want: []want{{Fail, []int{0, 1, 2}, []string{"3 worlds of one", "PMI_SIZE", "mpirun.openmpi", "openmpi-bin"}}}},
	{name: "libmpi is missing", ranks: 3, prepare: func(s *set) {
		s.replace("launch-probe", "launch-probe", func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("libmpi.so.40"), []byte("libmpi.so.99"))
		})
	}, want: []want{{Fail, []int{0}, []string{"libmpi.so.99", "libopenmpi3"}}}},
	{name: "libmpi is missing, alone", prepare: func(s *set) {
		s.replace("launch-probe", "launch-probe", func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("libmpi.so.40"), []byte("libmpi.so.99"))
		})
	}, want: []want{{Fail, []int{0}, []string{"libmpi.so.99", "libopenmpi3"}}}},
	{name: "launch-probe is missing", ranks: 2, prepare: func(s *set) {
		os.Remove(filepath.Join(s.dir, "launch-probe"))
	}, want: []want{{Fail, []int{0}, []string{"launch-probe is missing", "make build"}}}},
	{name: "launch-probe crashes on a rank", ranks: 3, prepare: func(s *set) {
		s.probe(`[ "$OMPI_COMM_WORLD_RANK" = 2 ] && kill -SEGV $$; exec "$real"`)
	}, want: []want{{Fail, []int{2}, []string{"died in its start", "segmentation fault"}}}},
	{name: "launch-probe hangs on a rank", ranks: 3, args: []string{"--timeout", "4s"}, prepare: func(s *set) {
		s.probe(`[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exec sleep 1000; exec "$real"`)
	}, want: []want{{Fail, []int{1}, []string{"did not come back within 4s", "hangs in its start"}}}},
	{name: "launch-probe is stopped on a rank", ranks: 2, args: []string{"--timeout", "4s"}, prepare: func(s *set) {
		s.probe(`[ "$OMPI_COMM_WORLD_RANK" = 1 ] && kill -STOP $$; exec "$real"`)
	}, want: []want{{Fail, []int{1}, []string{"is stopped", "kill -CONT"}}}},
	{name: "little memory may be locked on a rank", ranks: 2,
		wrap: `[ $OMPI_COMM_WORLD_RANK = 1 ] && ulimit -l 16; exec "$@"`,
		want: []want{{Warn, []int{1}, []string{"memlock is 16 KiB", "ulimit -l"}}}},
	{name: "few files may be open on a rank", ranks: 4,
		wrap: `[ $OMPI_COMM_WORLD_RANK = 3 ] && ulimit -n 70; exec "$@"`,
		want: []want{{Fail, []int{3}, []string{"70 files", "ulimit -n"}}}},
	{name: "fewer files than usual", ranks: 2, wrap: `ulimit -n 500; exec "$@"`,
		want: []want{{Warn, []int{0, 1}, []string{"500 files"}}}},
	{name: "all ranks on one core", ranks: 2, wrap: `exec taskset -c 0 "$@"`, prepare: func(s *set) {
		cores, all := affinity()
		if !slices.Contains(cores, 0) || all < 2 {
			s.t.Skipf("cores %v of %d", cores, all)
		}
	}, want: []want{{Warn, []int{0, 1}, []string{"2 ranks share 1 of", "--bind-to none"}}}},
	{name: "a setting reaches some ranks only", ranks: 4,
		wrap: `[ $OMPI_COMM_WORLD_RANK = 2 ] && export NCCL_SOCKET_IFNAME=eth9; exec "$@"`,
		want: []want{{Warn, []int{2}, []string{`NCCL_SOCKET_IFNAME is "eth9" here and not set elsewhere`,
			"mpirun -x"}}}},
	{name: "no OpenBLAS on a rank", ranks: 2,
		wrap: `[ $OMPI_COMM_WORLD_RANK = 1 ] && export LOCKSTEP_BLAS=gonum; exec "$@"`,
		want: []want{{Warn, []int{1}, []string{"gonum", "libopenblas0-pthread"}}}},
	{name: "little room in /dev/shm", ranks: 2, prepare: func(s *set) {
		needRoot(s.t, "unshare", "mount")
		if err := exec.Command("unshare", "-m", "true").Run(); err != nil {
			s.t.Skipf("no mount namespaces: %v", err)
		}
		s.prefix("unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"`, "sh")
	}, want: []want{{Fail, []int{0, 1}, []string{"in /dev/shm", "2 ranks need 16 MiB", "--shm-size"}}}},

	{name: "double: other versions of NCCL", ranks: 3,
		wrap:    `[ $OMPI_COMM_WORLD_RANK = 1 ] && export FAKENCCL_VERSION=22602; exec "$@"`,
		prepare: func(s *set) { s.gpus(3) },
		want:    []want{{Fail, []int{1}, []string{"NCCL is 2.26.2 here and 2.28.3 elsewhere"}}}},
	{name: "double: NCCL is too old on a rank", ranks: 2,
		wrap:    `[ $OMPI_COMM_WORLD_RANK = 1 ] && export FAKENCCL_VERSION=21703; exec "$@"`,
		prepare: func(s *set) { s.gpus(2) },
		want:    []want{{Warn, []int{1}, []string{"through MPI", "2.17.3", "too old", "libnccl2"}}}},
	{name: "double: no NCCL and no NVRTC", ranks: 2, prepare: func(s *set) {
		s.gpus(2)
		testkit.Must(s.t, os.Mkdir(filepath.Join(s.dir, "lib"), 0o755))
		for _, name := range []string{"libnccl.so.2", "libnccl.so", "libnvrtc.so.13", "libnvrtc.so.12",
			"libnvrtc.so.11.2", "libnvrtc.so", "libcublas.so.13", "libcublas.so.12"} {
			s.write("lib/"+name, "not a library")
		}
		s.env("CUDA_HOME=", "CUDA_PATH=")
	}, want: []want{
		{Warn, []int{0, 1}, []string{"through MPI", "NCCL is not to be found", "libnccl2"}},
		{Fail, []int{0, 1}, []string{"NVRTC", "no kernel", "libnvrtc12"}},
		{Fail, []int{0, 1}, []string{"cublas", "no matrix product", "libcublas12"}},
	}},
	{name: "double: two ranks on one GPU", ranks: 2, prepare: func(s *set) { s.gpus(1, "CUDA_VISIBLE_DEVICES=0") },
		want: []want{{Fail, []int{1}, []string{"two ranks on one GPU", "rank 0 has GPU-", "CUDA_VISIBLE_DEVICES"}}}},
	{name: "double: more ranks than GPUs", ranks: 4, prepare: func(s *set) { s.gpus(2) },
		want: []want{{Fail, []int{2, 3}, []string{"4 ranks and 2 GPUs", "ppr:2:node"}}}},
	{name: "double: an old driver on a rank", ranks: 2,
		wrap:    `[ $OMPI_COMM_WORLD_RANK = 1 ] && export FAKECUDA_VERSION=11080; exec "$@"`,
		prepare: func(s *set) { s.gpus(2) },
		want:    []want{{Fail, []int{1}, []string{"CUDA 11.8", "nvidia-driver"}}}},
	{name: "double: another driver on a rank", ranks: 3,
		wrap:    `[ $OMPI_COMM_WORLD_RANK = 2 ] && export FAKECUDA_VERSION=12040; exec "$@"`,
		prepare: func(s *set) { s.gpus(3) },
		want:    []want{{Warn, []int{2}, []string{"driver is 12.4 here and 13.0 elsewhere"}}}},
	{name: "double: no GPU on a rank", ranks: 2,
		wrap:    `[ $OMPI_COMM_WORLD_RANK = 1 ] && export FAKECUDA_DEVICES=0; exec "$@"`,
		prepare: func(s *set) { s.gpus(2) },
		want:    []want{{Fail, []int{1}, []string{"sees no GPU, while others do"}}}},
	{name: "double: each task sees its own GPU", ranks: 2,
		wrap:    `[ $OMPI_COMM_WORLD_RANK = 1 ] && export FAKECUDA_MIG=1; exec "$@"`,
		prepare: func(s *set) { s.gpus(1) }, // the second is a part of a GPU, to have another name
		want:    []want{{Warn, []int{0, 1}, []string{"each task sees one GPU", "--gpus-per-node"}}}},
	{name: "double: GPUs that do not reach each other", ranks: 2,
		prepare: func(s *set) { s.gpus(2, "FAKECUDA_PEERS=0") },
		want:    []want{{Warn, []int{0, 1}, []string{"no GPU reaches another's memory"}}}},
}

func TestBrokenSetups(t *testing.T) {
	t.Parallel()
	build(t)
	for _, tc := range setups {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := examine(t, tc.ranks, tc.wrap, tc.args, tc.prepare)
			r.check(t, max(1, tc.ranks), tc.want)
		})
	}
}

// TestGPUMemoryThroughMPI: if MPI says that it takes GPU memory, one rank of the node has a process
// try it. The memory is a double's, which any MPI takes. The MPI that is wrong about itself is Open
// MPI with another MPI_Sendrecv.
func TestGPUMemoryThroughMPI(t *testing.T) {
	t.Parallel()
	build(t)
	const yes = "int MPIX_Query_cuda_support(void) { return 1; }\n"
	const says = "MPI says it is CUDA-aware (MPIX_Query_cuda_support of Open MPI"
	const do = "use --collectives nccl or host-staged"
	// MPI takes its time to start: that and the test together take longer than ranks may take to
	// meet.
	const slow = "#include <unistd.h>\nint PMPI_Init(int *, char ***);\n" +
		"int MPI_Init(int *n, char ***v) { sleep(6); return PMPI_Init(n, v); }\n"
	for _, tc := range []struct {
		name   string
		gpus   int
		source string
		noNCCL bool
		args   []string
		tried  bool
		want   []want
	}{
		{"no GPU", 0, yes, false, nil, false, nil},
		{"it says no", 2, "int MPIX_Query_cuda_support(void) { return 0; }\n", false, nil, false, nil},
		{"it is right", 2, yes, false, nil, true, nil},
		{"it crashes", 2, yes + "int MPI_Sendrecv(void) { *(volatile int *)8 = 1; return 0; }\n", false, nil, true,
			[]want{{Warn, []int{0}, []string{says, "crashed with signal SIGSEGV", do}}}},
		{"it crashes, and there is no NCCL", 2, yes + "int MPI_Sendrecv(void) { *(volatile int *)8 = 1; return 0; }\n",
			true, nil, true,
			[]want{{Fail, []int{0}, []string{says, "crashed with signal SIGSEGV", do}}}},
		{"it is killed", 2, "#include <signal.h>\n" + yes + "int MPI_Sendrecv(void) { return raise(SIGKILL); }\n",
			false, nil, true,
			[]want{{Warn, []int{0}, []string{says, "crashed with signal 9 (killed)", do}}}},
		{"it refuses", 2, yes + "int MPI_Sendrecv(void) { return 1; }\n", false, nil, true,
			[]want{{Warn, []int{0}, []string{says, "failed: ", "MPI_Sendrecv", do}}}},
		{"it hangs", 2, slow + yes + "int MPI_Sendrecv(void) { for (;;) pause(); }\n", false,
			[]string{"--timeout", "30s"}, true,
			[]want{{Warn, []int{0}, []string{says, "did not come back within 10s", do}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := examine(t, 2, "", tc.args, func(s *set) {
				if tc.gpus > 0 {
					s.gpus(tc.gpus)
				}
				if tc.noNCCL {
					testkit.Must(s.t, os.Mkdir(filepath.Join(s.dir, "lib"), 0o755))
					s.write("lib/libnccl.so.2", "not a library")
					s.write("lib/libnccl.so", "not a library")
				}
				s.preload(tc.source)
			})
			r.check(t, 2, tc.want)
			for rank, f := range r.results[0].Ranks {
				if f.MPI == nil || f.MPI.CUDA == nil || f.MPI.CUDA.Tried != (tc.tried && rank == 0) ||
					(f.MPI.CUDA.Failure == "") != (rank > 0 || tc.want == nil) {
					t.Errorf("rank %d: %+v\n%s", rank, f.MPI, r.text)
				}
			}
		})
	}
}

// output is the output of a doctor.
type output struct {
	status   int
	ended    string // how: the status, or the signal
	results  []Result
	findings []Finding // of all
	text     string
}

// examine runs launch doctor --json on a number of ranks, 0 for without a launcher.
func examine(t *testing.T, ranks int, wrap string, args []string, prepare func(s *set)) output {
	t.Helper()
	ctx := mpirun.Patience(t)
	s := &set{t: t, dir: t.TempDir()}
	for _, f := range []string{"launch", "launch-probe"} {
		testkit.Must(t, os.Link(filepath.Join(build(t), f), filepath.Join(s.dir, f)))
	}
	launch := filepath.Join(s.dir, "launch")
	line := append([]string{"doctor", "--json", "--timeout", "10m"}, args...)
	if ranks > 0 {
		line = append([]string{"-c", `"$@"`, "sh", launch}, line...)
		if wrap != "" {
			line[1] = wrap
		}
		s.cmd = mpirun.Command(ctx, ranks, "/bin/sh", line...)
	} else {
		s.cmd = exec.CommandContext(ctx, launch, line...)
		s.cmd.Env = os.Environ()
	}
	s.cmd.Dir = s.dir
	// short, for sockets, and its own: mpiruns that start at once in one are in each other's way
	tmp, err := os.MkdirTemp(build(t), "")
	testkit.Must(t, err)
	mpirun.KeepSessions(tmp)             // several singletons may start at once in it, too
	s.env(launchEnv+"=1", "TMPDIR="+tmp) // where mpirun leaves files of a job that it ends
	if prepare != nil {
		prepare(s)
	}
	return s.run(ctx)
}

func (s *set) run(ctx context.Context) output {
	s.t.Helper()
	var out, errs bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &out, &errs
	err := mpirun.Start(s.cmd) // Gather ends threads
	if err == nil {
		err = s.cmd.Wait()
	}
	if s.cmd.SysProcAttr != nil && s.cmd.SysProcAttr.Setpgid && s.cmd.Process != nil {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // whatever mpirun left behind in its group
	}
	if ctx.Err() != nil || s.cmd.ProcessState == nil {
		s.t.Fatalf("%v, %v\n%s%s", err, ctx.Err(), &out, &errs)
	}
	e := output{status: s.cmd.ProcessState.ExitCode(), ended: s.cmd.ProcessState.String(),
		text: out.String() + errs.String()}
	for line := range strings.Lines(out.String()) {
		var r Result
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &r) == nil {
			e.results = append(e.results, r)
			e.findings = append(e.findings, r.Findings...)
		}
	}
	return e
}

// check compares the findings with the expected ones.
func (e *output) check(t *testing.T, ranks int, wanted []want) {
	t.Helper()
	if len(e.results) == 0 {
		t.Fatalf("no result, %s\n%s", e.ended, e.text)
	}
	failure := false
	for _, w := range wanted {
		failure = failure || w.level == Fail
		if !w.among(e.findings) {
			t.Errorf("no %s of ranks %v with %q among\n%v\n%s", w.level, w.ranks, w.words, e.findings, e.text)
		}
	}
	if failure && e.status == 0 {
		t.Errorf("status 0 after a failure")
	}
	gpus := len(e.results[0].Ranks[0].GPU.Devices) > 0 // a machine with doubles lacks the libraries
	missed := e.status == 1 && mpirun.MissedEnd(e.text)
	if !failure && !gpus && (e.status != 0 && !missed || Failed(e.findings) || len(e.results[0].Ranks) != ranks) {
		t.Errorf("status %d, facts of %d ranks, findings %v\n%s", e.status, len(e.results[0].Ranks), e.findings, e.text)
	}
}
