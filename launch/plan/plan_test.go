package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/internal/cli"
	"lockstep/internal/testkit"
)

func TestLines(t *testing.T) {
	hosts := options{hosts: "a:8,b:8", gpus: 8, launcher: "auto"}
	all := options{hosts: "a,b", np: 3, iface: "ib0", agent: "/bin/rsh", grace: 30, oversubscribe: true,
		launcher: "auto"}
	env := []string{"HOME=/root", "NCCL_DEBUG=INFO", "LD_LIBRARY_PATH=/opt/lib", "NCCL_EMPTY=", "GOPATH=/go"}
	for _, tc := range []struct {
		name string
		o    options
		s    site
		want [4]string // openmpi4, openmpi5, mpich, slurm
	}{
		{"one node", options{np: 2, launcher: "auto"}, site{cores: 8}, [4]string{
			"mpirun -np 2 --map-by ppr:2:node --bind-to none prog 'a b'",
			"mpirun -np 2 --map-by ppr:2:node --bind-to none prog 'a b'",
			"mpirun -np 2 -ppn 2 -bind-to none prog 'a b'",
			"srun --mpi=pmix --nodes=1 --ntasks=2 --cpu-bind=none --kill-on-bad-exit=1 --quit-on-interrupt --label " +
				"prog 'a b'",
		}},
		{"two nodes of GPUs", hosts, site{root: true, env: env}, [4]string{
			"mpirun --allow-run-as-root -np 16 -H a:8,b:8 --map-by ppr:8:node --bind-to none -x LD_LIBRARY_PATH -x " +
				"NCCL_DEBUG --mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 3 --mca " +
				"oob_tcp_keepalive_probes 3 prog 'a b'",
			"mpirun --allow-run-as-root -np 16 -H a:8,b:8 --map-by ppr:8:node --bind-to none -x LD_LIBRARY_PATH -x " +
				"NCCL_DEBUG prog 'a b'",
			"mpirun -np 16 -hosts a:8,b:8 -ppn 8 -bind-to none prog 'a b'",
			"srun --mpi=pmix --nodes=2 --ntasks=16 --ntasks-per-node=8 --nodelist=a,b --gpus-per-node=8 " +
				"--cpu-bind=none --kill-on-bad-exit=1 --quit-on-interrupt --label prog 'a b'",
		}},
		{"everything", all, site{cores: 1}, [4]string{
			"mpirun -np 3 -H a:2,b:2 --map-by ppr:2:node --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 " +
				"--mca btl_tcp_if_include ib0 --mca oob_tcp_if_include ib0 -x NCCL_SOCKET_IFNAME=ib0 --mca " +
				"plm_rsh_agent /bin/rsh --mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 3 --mca " +
				"oob_tcp_keepalive_probes 3 --mca odls_base_sigkill_timeout 30 prog 'a b'",
			"mpirun -np 3 -H a:2,b:2 --map-by ppr:2:node:oversubscribe --bind-to none --mca mpi_yield_when_idle 1 " +
				"--mca btl_tcp_if_include ib0 --prtemca prte_if_include ib0 -x NCCL_SOCKET_IFNAME=ib0 --prtemca " +
				"plm_ssh_agent /bin/rsh --prtemca odls_base_sigkill_timeout 30 prog 'a b'",
			"mpirun -np 3 -hosts a:2,b:2 -ppn 2 -bind-to none -iface ib0 -genv NCCL_SOCKET_IFNAME ib0 -launcher ssh " +
				"-launcher-exec /bin/rsh prog 'a b'",
			"srun --mpi=pmix --nodes=2 --ntasks=3 --ntasks-per-node=2 --nodelist=a,b --cpu-bind=none --overcommit " +
				"--export=ALL,NCCL_SOCKET_IFNAME=ib0,OMPI_MCA_btl_tcp_if_include=ib0 --kill-on-bad-exit=1 " +
				"--quit-on-interrupt --label prog 'a b'",
		}},
		{"uneven slots", options{hosts: "a:1,b:3", launcher: "auto"}, site{cores: 8}, [4]string{
			"mpirun -np 4 -H a:1,b:3 --map-by slot --bind-to none --mca oob_tcp_keepalive_time 10 --mca " +
				"oob_tcp_keepalive_intvl 3 --mca oob_tcp_keepalive_probes 3 prog 'a b'",
			"mpirun -np 4 -H a:1,b:3 --map-by slot --bind-to none prog 'a b'",
			"mpirun -np 4 -hosts a:1,b:3 -bind-to none prog 'a b'",
			"srun --mpi=pmix --nodes=2 --ntasks=4 --nodelist=a,b --cpu-bind=none --kill-on-bad-exit=1 " +
				"--quit-on-interrupt --label prog 'a b'",
		}},
		{"two names with one first label", options{hosts: "m.1.org:1,m.2.org:1", launcher: "auto"}, site{}, [4]string{
			"mpirun -np 2 -H m.1.org:1,m.2.org:1 --mca orte_keep_fqdn_hostnames 1 --map-by ppr:1:node --bind-to none " +
				"--mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 3 --mca oob_tcp_keepalive_probes 3 " +
				"prog 'a b'",
			"mpirun -np 2 -H m.1.org:1,m.2.org:1 --prtemca prte_keep_fqdn_hostnames 1 --map-by ppr:1:node " +
				"--bind-to none prog 'a b'",
			"mpirun -np 2 -hosts m.1.org:1,m.2.org:1 -ppn 1 -bind-to none prog 'a b'",
			"srun --mpi=pmix --nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=m.1.org,m.2.org --cpu-bind=none " +
				"--kill-on-bad-exit=1 --quit-on-interrupt --label prog 'a b'",
		}},
		{"no hosts yet", options{nodes: 2, perNode: 4, launcher: "auto"}, site{cores: 8}, [4]string{
			"mpirun -np 8 --hostfile hosts --map-by ppr:4:node --bind-to none --mca oob_tcp_keepalive_time 10 --mca " +
				"oob_tcp_keepalive_intvl 3 --mca oob_tcp_keepalive_probes 3 prog 'a b'",
			"mpirun -np 8 --hostfile hosts --map-by ppr:4:node --bind-to none prog 'a b'",
			"mpirun -np 8 -f hosts -ppn 4 -bind-to none prog 'a b'",
			"srun --mpi=pmix --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpu-bind=none --kill-on-bad-exit=1 " +
				"--quit-on-interrupt --label prog 'a b'",
		}},
	} {
		for i, name := range []string{"openmpi4", "openmpi5", "mpich", "slurm"} {
			j, err := tc.o.job(tc.s, []string{"prog", "a b"})
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			command := "mpirun"
			if name == "slurm" {
				command = "srun"
			}
			l := build(launcherHere{name: name, command: command}, j, tc.s)
			if got := l.String(); got != tc.want[i] {
				t.Errorf("%s, %s:\n got %s\nwant %s", tc.name, name, got, tc.want[i])
			}
			for _, g := range l.Groups {
				if g.Why == "" {
					t.Errorf("%s, %s: %v has no reason", tc.name, name, g.Words)
				}
			}
		}
	}
}

func TestJob(t *testing.T) {
	slurm := []string{"SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_NTASKS=6"}
	for _, tc := range []struct {
		o           options
		s           site
		nodes, most int
		ranks       int
		here        bool
	}{
		{options{}, site{cores: 6}, 1, 6, 6, true},
		{options{}, site{cores: 6, gpus: 2}, 1, 2, 2, true},
		{options{np: 5}, site{cores: 6, gpus: 2}, 1, 5, 5, true},
		{options{nodes: 3, gpus: 4}, site{cores: 6}, 3, 4, 12, false},
		{options{nodes: 3, gpus: 4, perNode: 2}, site{cores: 6}, 3, 2, 6, false},
		{options{nodes: 2, np: 3}, site{cores: 6}, 2, 2, 3, false},
		{options{}, site{cores: 6, env: slurm}, 2, 3, 6, false},
		{options{np: 2}, site{cores: 6, env: slurm}, 2, 1, 2, false},
		{options{hosts: "localhost", np: 2}, site{cores: 6}, 1, 2, 2, true},
		{options{hosts: "me:2"}, site{cores: 6, name: "me"}, 1, 2, 2, true},
		{options{hosts: "you:2"}, site{cores: 6, name: "me"}, 1, 2, 2, false},
		{options{hosts: "me:2", agent: "x"}, site{cores: 6, name: "me"}, 1, 2, 2, false},
		{options{hosts: "a,a,b:2"}, site{cores: 6}, 2, 2, 4, false},
		{options{hosts: "a:4,b:4", np: 2}, site{cores: 6}, 2, 2, 2, false},
	} {
		tc.o.launcher = "auto"
		j, err := tc.o.job(tc.s, []string{"prog"})
		if err != nil || j.nodes != tc.nodes || j.most != tc.most || j.ranks != tc.ranks || j.here != tc.here {
			t.Errorf("%+v: %d nodes, at most %d, %d ranks, here %v, %v; want %d, %d, %d, %v",
				tc.o, j.nodes, j.most, j.ranks, j.here, err, tc.nodes, tc.most, tc.ranks, tc.here)
		}
	}
}

// Root needs no flag where the environment allows it already.
func TestRoot(t *testing.T) {
	s := site{cores: 8, root: true}
	for _, allowed := range []bool{false, true} {
		if allowed {
			s.env = []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
		}
		j, err := (&options{np: 2, launcher: "auto"}).job(s, []string{"prog"})
		l := build(launcherHere{name: "openmpi4", command: "mpirun"}, j, s).String()
		if err != nil || strings.Contains(l, "--allow-run-as-root") == allowed {
			t.Errorf("allowed is %v, %v: %s", allowed, err, l)
		}
	}
}

// The number of ranks on each node is said as it is.
func TestWhy(t *testing.T) {
	for _, tc := range []struct {
		o    options
		want string
	}{
		{options{np: 4, nodes: 2}, "4 ranks: 2 on each of 2 nodes"},
		{options{np: 3, nodes: 2}, "3 ranks: 2 on one node, 1 on the other"},
		{options{np: 8, nodes: 3}, "8 ranks: 3 on each of 2 nodes, 2 on another"},
		{options{np: 5, nodes: 4}, "5 ranks: at most 2 on each of 4 nodes"},
		{options{np: 3, nodes: 2, gpus: 2}, "3 ranks: 2 on one node, 1 on the other"},
		{options{nodes: 2, gpus: 2}, "4 ranks: 2 on each of 2 nodes, one for each GPU"},
		{options{hosts: "a:1,b:3"}, "4 ranks on 2 nodes, as many on each as it has slots"},
	} {
		tc.o.launcher = "auto"
		j, err := tc.o.job(site{cores: 8}, []string{"prog"})
		if err != nil || j.why() != tc.want {
			t.Errorf("%+v: %q, %v, want %q", tc.o, j.why(), err, tc.want)
		}
	}
}

func TestHostfile(t *testing.T) {
	o := options{hostfile: writeFile(t, filepath.Join(t.TempDir(), "hosts"),
		"# nodes\n\na slots=2\nb:3 # the second\nc\n", 0o644)}
	got, err := o.hostList()
	if want := []host{{"a", 2}, {"b", 3}, {"c", 0}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{
		"a", "a:2", "a slots=2", "a slots=2 max_slots=4", "a:", ":1", "-x", "a:99999999999999999999", "a:2 slots=2",
		" ",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		h, err := parseHost(entry)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: more than a line: %v", entry, err)
			}
			return
		}
		if h.name == "" || strings.ContainsAny(h.name, " ,:\n'$") || h.name[0] == '-' || h.slots < 0 ||
			h.slots > maxRanks {
			t.Errorf("%q: %+v", entry, h)
		}
	})
}

func TestLauncherOf(t *testing.T) {
	for _, tc := range []struct{ text, name, version string }{
		{"mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "openmpi4",
			"Open MPI 4.1.4"},
		{"mpirun (Open MPI) 4.0.3\n", "openmpi4", "Open MPI 4.0.3"},
		{"mpirun (Open MPI) 5.0.7\n\nReport bugs to https://www.open-mpi.org/community/help/\n", "openmpi5",
			"Open MPI 5.0.7"},
		{"mpirun (Open MPI) 6.1.0a1\n", "openmpi5", "Open MPI 6.1.0a1"},
		{"HYDRA build details:\n    Version:                                 4.0.2\n", "mpich", "MPICH's Hydra 4.0.2"},
		{"", "", ""},
		{"usage: mpirun\n", "", ""},
	} {
		if name, version := launcherOf(tc.text); name != tc.name || version != tc.version {
			t.Errorf("%q: %q, %q", tc.text, name, version)
		}
	}
}

// TestPrintedLines starts each line that plan prints for a launcher that is here,
// through a shell, as a user would.
func TestPrintedLines(t *testing.T) {
	for _, w := range installed(t) {
		for _, n := range []int{1, 2, 3} {
			args := []string{"plan", "--launcher", w.name, "-np", strconv.Itoa(n), "--oversubscribe", "--json", "--",
				self(t), "program", "rank", "a b", `"$HOME"`}
			out, errs, status := result(t, launchCommand(t, args...))
			if status != 0 {
				t.Fatalf("%v: status %d: %s", args, status, errs)
			}
			var p struct {
				Lines []struct{ Launcher, Shell string }
			}
			err := json.Unmarshal([]byte(out), &p)
			if err != nil || len(p.Lines) != 1 || p.Lines[0].Launcher != w.name {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
			out, errs, status = result(t, start(t, "sh", "-c", p.Lines[0].Shell))
			lines := strings.Split(strings.TrimSpace(out), "\n")
			slices.Sort(lines)
			var want []string
			for r := range n {
				want = append(want, fmt.Sprintf("rank %d of %d %q", r, n, []string{"a b", `"$HOME"`}))
			}
			if status != 0 || !slices.Equal(lines, want) {
				t.Errorf("%s\nstatus %d, got %q, want %q\n%s", p.Lines[0].Shell, status, lines, want, errs)
			}
		}
	}
}

// TestText compares what plan prints with what it prints as JSON.
func TestText(t *testing.T) {
	args := []string{"--nodes", "2", "--gpus-per-node", "8", "--launcher", "all", "--time", "1:00:00", "--partition",
		"gpu", "--", "bin/train", "--checkpoint", "runs/a"}
	out, _, status := result(t, launchCommand(t, append([]string{"plan"}, args...)...))
	doc, _, _ := result(t, launchCommand(t, append([]string{"plan", "--json"}, args...)...))
	var p struct {
		Lines []struct {
			Launcher, Shell string
			Groups          []Group
		}
		Sbatch string
	}
	if err := json.Unmarshal([]byte(doc), &p); err != nil || status != 0 || len(p.Lines) != 4 {
		t.Fatalf("status %d, %v: %s", status, err, doc)
	}
	for _, l := range p.Lines {
		if !strings.Contains(out, "\n"+l.Shell+"\n") {
			t.Errorf("%s: %q is not in:\n%s", l.Launcher, l.Shell, out)
		}
		for _, g := range l.Groups {
			if !strings.Contains(out, g.Why) {
				t.Errorf("%s: %q is not in:\n%s", l.Launcher, g.Why, out)
			}
		}
	}
	if !strings.HasSuffix(out, p.Sbatch) || !strings.HasPrefix(p.Sbatch, "#!/bin/bash\n#SBATCH ") {
		t.Errorf("no batch file in:\n%s", out)
	}
	for _, want := range []string{
		"--time=1:00:00 ", "--partition=gpu ", "--nodes=2 ", "--ntasks-per-node=8 ", "--gpus-per-node=8 ",
		"--signal=B:USR1@120 ",
	} {
		if !strings.Contains(p.Sbatch, "\n#SBATCH "+want) {
			t.Errorf("%q is not in:\n%s", want, p.Sbatch)
		}
	}
}

// TestBatchFile runs the batch file in bash, with doubles of srun and scontrol: srun says what
// signal it gets. It may end before bash sees that the signal has ended the waiting for it only.
func TestBatchFile(t *testing.T) {
	if !found("bash") {
		t.Skip("bash is not installed")
	}
	o := options{nodes: 1, np: 2, launcher: "slurm"}
	s := site{cores: 2}
	for _, tc := range []struct {
		name   string
		srun   string
		gone   bool
		status int
		want   string
	}{
		{"ends", "exit 0", false, 0, ""},
		{"fails", "exit 3", false, 3, ""},
		{"is killed", "kill -9 $$", false, 137, ""},
		{"told, saves and ends", "trap 'echo saves; exit 0' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done",
			false, 0, "saves\nscontrol requeue 7\n"},
		{"told, fails", "trap 'exit 4' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done", false, 4, ""},
		{"told, saves and is gone", "trap 'exit 0' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done", true, 0,
			"scontrol requeue 7\n"},
		{"told, fails and is gone", "trap 'exit 4' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done", true, 4, ""},
	} {
		dir := t.TempDir()
		writeFile(t, dir+"/srun", "#!/bin/bash\n"+tc.srun+"\n", 0o755)
		writeFile(t, dir+"/scontrol", "#!/bin/sh\necho scontrol $*\n", 0o755)
		j, err := o.job(s, []string{"prog", "--checkpoint=runs/a"})
		testkit.Must(t, err)
		cmd := start(t, "bash", writeFile(t, dir+"/job", o.file(o.lines(j, s), j), 0o644))
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SLURM_JOB_ID=7")
		if tc.gone { // the batch file looks whether it is there once it is not
			cmd.Env = append(cmd.Env, "BASH_ENV="+writeFile(t, dir+"/gone",
				"kill() { [ \"$1\" != -0 ] || while builtin kill \"$@\"; do sleep 0.01; done; builtin kill \"$@\"; }\n",
				0o644))
		}
		out, errs, status := result(t, cmd)
		if status != tc.status || out != tc.want {
			t.Errorf("%s: status %d, %q, want %d, %q\n%s", tc.name, status, out, tc.status, tc.want, errs)
		}
	}
}

// TestSameWords checks that run starts what plan prints.
func TestSameWords(t *testing.T) {
	for _, w := range installed(t) {
		o := options{np: 2, launcher: w.name}
		s := site{cores: 8}
		j, err := o.job(s, []string{"prog"})
		testkit.Must(t, err)
		printed := o.lines(j, s)
		starter, j, err := o.plan(s, []string{"prog"})
		l := build(starter, j, s)
		if err != nil || len(printed) != 1 || l.String() != printed[0].String() {
			t.Fatalf("%v: run starts %q, plan prints %v", err, l, printed)
		}
		if _, err := openOutput(&l, j, "plain"); err != nil || l.String() != printed[0].String() {
			t.Errorf("%v: --logs plain changes the line to %q", err, l)
		}
	}
}

func TestCountGPUs(t *testing.T) {
	dev := t.TempDir()
	for _, f := range []string{"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"} {
		writeFile(t, filepath.Join(dev, f), "", 0o644)
	}
	for visible, want := range map[string]int{
		"unset": 3, "": 0, "-1": 0, "NoDevFiles": 0, "1": 1, "0,2": 2, "0, 2": 2, "0,1,2,3": 3, "0,-1,1,2": 1, "3,0": 0,
		"0,0": 0, "GPU-8a,GPU-7b": 2, "GPU-8a,x,1": 1, "MIG-8a": 1, "GPU-8a,GPU-8a": 0,
	} {
		if got := countGPUs(dev, func(string) (string, bool) { return visible, visible != "unset" }); got != want {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %d GPUs, want %d", visible, got, want)
		}
	}
}

func TestCheckRoom(t *testing.T) {
	const four, five = "OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"
	for _, tc := range []struct {
		o    options
		prog string
		env  string
		want string
	}{
		{options{np: 2}, "prog", "", ""},
		{options{np: 3}, "prog", "", "3 ranks, but 2 GPUs here: give -np 2, or --oversubscribe"},
		{options{np: 3}, "prog", four, "3 ranks, but 2 GPUs here: give -np 2, or --oversubscribe"},
		{options{np: 3}, "prog --device host", "", ""},
		{options{np: 3}, "prog --device=host", "", ""},
		{options{np: 9}, "prog --device host", "", "9 ranks, but 4 cores here: give -np 4, or --oversubscribe"},
		{options{np: 9}, "prog --device host", "OMPI_MCA_rmaps_base_oversubscribe=0",
			"9 ranks, but 4 cores here: give -np 4, or --oversubscribe"},
		{options{np: 9}, "prog --device host", four, ""}, // as the tutorial has it: it counts for mpirun, too
		{options{np: 9}, "prog --device host", five, ""},
		{options{np: 9, oversubscribe: true}, "prog", "", ""},
	} {
		tc.o.launcher = "auto"
		s := site{cores: 4, gpus: 2, env: []string{tc.env}}
		j, err := tc.o.job(s, strings.Fields(tc.prog))
		testkit.Must(t, err)
		told := tc.o.lines(j, s)[0]
		if told.Refused != tc.want {
			t.Errorf("launch plan says of %+v %s: %q, want %q", tc.o, tc.prog, told.Refused, tc.want)
		}
		got := ""
		if err := checkRoom(j, s); err != nil {
			got = err.Error()
			if !errors.As(err, new(cli.Usage)) {
				t.Errorf("%v is no cli.Usage", err)
			}
		}
		if got != tc.want {
			t.Errorf("%+v %s: %q, want %q", tc.o, tc.prog, got, tc.want)
		}
	}
}

// TestWrongMPI builds real programs against the MPIs that are here.
func TestWrongMPI(t *testing.T) {
	dir := t.TempDir()
	source := writeFile(t, dir+"/p.c", "#include <mpi.h>\nint main(int c, char **v) { return MPI_Init(&c, &v); }\n",
		0o644)
	for _, tc := range []struct{ cc, built, other string }{
		{"mpicc.mpich", "mpich", "openmpi4"},
		{"mpicc.openmpi", "openmpi4", "mpich"},
	} {
		t.Run(tc.cc, func(t *testing.T) {
			if _, err := exec.LookPath(tc.cc); err != nil {
				t.Skip(tc.cc + " is not installed")
			}
			prog := dir + "/" + tc.cc + ".out"
			if out, errs, status := result(t, start(t, tc.cc, "-o", prog, source)); status != 0 {
				t.Skipf("%s does not work here: %s%s", tc.cc, out, errs)
			}
			if err := checkProgram(tc.built, prog); err != nil {
				t.Errorf("with its own launcher: %v", err)
			}
			err := checkProgram(tc.other, prog)
			if err == nil || !strings.Contains(err.Error(), "add --launcher "+tc.built) {
				t.Errorf("with that of %s: %v", tc.other, err)
			}
		})
	}
}

func TestCheckMPI(t *testing.T) {
	dir := t.TempDir()
	link := func(target string) string {
		if err := os.Symlink(writeFile(t, filepath.Join(dir, target), "", 0o644),
			filepath.Join(dir, target+".link")); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, target+".link")
	}
	four, five := link("libmpi.so.40.30.4"), link("libmpi.so.40.40.7")
	for _, tc := range []struct{ launcher, needed, ldd, want string }{
		{"openmpi4", "libmpi.so.40", "\tlibmpi.so.40 => " + four + " (0x1)\n", ""},
		{"openmpi5", "libmpi.so.40", "\tlibmpi.so.40 => " + five + " (0x1)\n", ""},
		{"openmpi5", "libmpi.so.40", "\tlibmpi.so.40 => " + four + " (0x1)\n", "add --launcher openmpi4"},
		{"openmpi4", "libmpi.so.40", "\tlibmpi.so.40 => " + five + " (0x1)\n", "add --launcher openmpi5"},
		{"openmpi4", "libmpi.so.40", "\tlibmpi.so.40 => not found\n",
			"needs libmpi.so.40, which the loader does not find"},
		{"mpich", "libmpi.so.40", "", "add --launcher openmpi4"},
		{"mpich", "libmpich.so.12", "", ""},
		{"mpich", "libmpi.so.12", "", ""},
		{"openmpi4", "libmpi.so.12", "", "add --launcher mpich"},
		{"slurm", "libmpi.so.12", "", ""},
		{"mpich", "", "", ""},
	} {
		err := checkMPI(tc.launcher, "prog", tc.needed, func() string { return tc.ldd })
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
