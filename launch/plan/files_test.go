package plan

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// Each batch system gets a file of its own, with the line that is printed above it.
func TestFiles(t *testing.T) {
	for _, tc := range []struct {
		args, field string
		want        []string // in the file
		line        string   // in the line
	}{
		{"--launcher slurm --nodes 2 --ranks-per-node 3 --array 4", "sbatch",
			[]string{"#SBATCH --array=0-3 ", "#SBATCH --nodes=2 ", "index=$SLURM_ARRAY_TASK_ID\n",
				`--label prog ''"$index"''` + "\n"},
			"srun --mpi=pmix --nodes=2 --ntasks=6 "},
		{"--launcher slurm --het 1:2:big,2:3", "sbatch",
			[]string{"#SBATCH --nodes=1 ", "#SBATCH --constraint=big ", "#SBATCH hetjob\n",
				"#SBATCH --nodes=2 ", "--label prog '{}'\n"},
			"srun --mpi=pmix --het-group=0,1 --cpu-bind=none --kill"},
		{"--launcher pbs --nodes 2 --gpus-per-node 8 --time 1-0 --array 4", "qsub",
			[]string{"#PBS -l select=2:ncpus=8:mpiprocs=8:ngpus=8\n", "#PBS -l walltime=24:00:00\n", "exec mpi",
				`prog ''"$index"''`}, `"$PBS_NODEFILE" `},
		{"--launcher lsf --nodes 2 --ranks-per-node 3", "bsub",
			[]string{"#BSUB -n 6\n", `#BSUB -R "span[ptile=3]"` + "\n", "exec mpi", "blaunch",
				"prog '{}'"}, `"$LSB_DJOB_HOSTFILE" `},
		{"--launcher kubernetes --nodes 2 --gpus-per-node 8 --image me/x", "kubectl",
			[]string{"kind: MPIJob\n", `image: "me/x"`, "replicas: 2 ", `- "/etc/mpi/hostfile"`, `- "{}"`},
			" /etc/mpi/hostfile "},
	} {
		args := append(append([]string{"plan", "--json"}, strings.Fields(tc.args)...), "--", "prog", "{}")
		out, errs, status := result(t, launchCommand(t, args...))
		var doc map[string]any
		if err := json.Unmarshal([]byte(out), &doc); err != nil || status != 0 {
			t.Fatalf("%s: status %d, %v\n%s%s", tc.args, status, err, out, errs)
		}
		file, _ := doc[tc.field].(string)
		for _, want := range tc.want {
			if !strings.Contains(file, want) {
				t.Errorf("%s: %q is not in the file:\n%s", tc.args, want, file)
			}
		}
		lines := doc["lines"].([]any)
		shell, _ := lines[0].(map[string]any)["shell"].(string)
		if len(lines) != 1 || !strings.Contains(shell, tc.line) {
			t.Errorf("%s: %q is not in the line %q", tc.args, tc.line, shell)
		}
		if words := strings.Count(file, shell); tc.field == "bsub" && words != 1 {
			t.Errorf("%s: the line is %d times in the file:\n%s", tc.args, words, file)
		}
		args[1] = "--launcher=" + strings.Fields(tc.args)[1]
		text, _, _ := result(t, launchCommand(t, args...))
		if !strings.HasSuffix(text, "\n# a file for "+tc.field+"\n"+file) {
			t.Errorf("%s prints\n%s", tc.args, text)
		}
	}
}

// Who starts a job again knows that its program goes on, and what has said so.
func TestSaves(t *testing.T) {
	for _, tc := range []struct{ args, says string }{
		{"-- prog --checkpoint runs/a", "--checkpoint"}, {"-- prog --run-dir=runs/a", "--run-dir"},
		{"--checkpoints runs/a -- prog", "--checkpoints"}, {"-- prog --run-dir off", ""}, {"-- prog", ""},
	} {
		for launcher, again := range map[string]string{
			"slurm": "\n#SBATCH --requeue ", "pbs": "\n#PBS -r y\n", "lsf": "\n#BSUB -r\n",
			"kubernetes": " backoffLimit: 3 ",
		} {
			args := append([]string{"plan", "--launcher", launcher, "--nodes", "2"}, strings.Fields(tc.args)...)
			if launcher == "kubernetes" {
				args = append([]string{"plan", "--image", "me/x"}, args[1:]...)
			}
			out, errs, status := result(t, launchCommand(t, args...))
			_, file, _ := strings.Cut(out, "\n# a file for ")
			saves := tc.says != ""
			if status != 0 || strings.Contains(file, again) != saves || strings.Contains(file, "kill -USR1") !=
				(saves && launcher == "slurm") || saves && !strings.Contains(file, "since "+tc.says+" says where") {
				t.Errorf("%s, %s: status %d\n%s%s", launcher, tc.args, status, errs, file)
			}
		}
	}
}

// A plan without GPUs does not speak of them; one with GPUs gives the reasons that they are.
func TestWithoutGPUs(t *testing.T) {
	for _, launcher := range []string{"all", "slurm", "pbs", "lsf"} {
		for _, np := range []int{2, 4} {
			o := options{launcher: launcher, np: np, nodes: 2}
			s := site{cores: 8}
			for _, prog := range [][]string{{"prog"}, {"prog", "--device", "host"}} {
				text := planText(t, o, s, prog)
				for _, word := range []string{"GPU", "NUMA", "NCCL"} {
					if strings.Contains(text, word) {
						t.Errorf("%s, %q: %s\n%s", launcher, prog, word, text)
					}
				}
				s.gpus = 4 // which the second leaves alone
			}
			o.gpus = 4
			if text := planText(t, o, s, []string{"prog"}); !strings.Contains(text, "local rank and GPU agree") ||
				!strings.Contains(text, "far from their GPUs") {
				t.Errorf("%s: %s", launcher, text)
			}
		}
	}
}

// planText is what launch plan prints.
func planText(t *testing.T, o options, s site, prog []string) string {
	t.Helper()
	j, err := o.job(s, prog)
	if err == nil {
		err = o.inFile(&j)
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := o.lines(j, s)
	var b strings.Builder
	if err := write(&b, lines, o.file(lines, j), nil, false); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A file that could not do what was asked is not written.
func TestNoFile(t *testing.T) {
	for args, want := range map[string]string{
		"--launcher pbs -H a:2 -- prog":    "--launcher pbs: it says itself which hosts a job has",
		"--launcher lsf --time 2h -- prog": "--time 2h: want minutes",
		"--launcher kubernetes --image x -- ./prog": "./prog is a path from this folder, which the container does " +
			"not " +
			"have: give the program's path there, such as /opt/prog",
		"--launcher kubernetes -- prog":                        "say by --image NAME which container has the program",
		"--launcher kubernetes --image x --array 3 -- prog {}": "--array is of batch files",
		"--array 3 -- prog {}":                                 "--array is of batch files",
		"--launcher slurm --array 1 -- prog {}":                "--array 1: give a number from 2 to",
		"--launcher slurm --array 3 -- prog":                   "no argument of the program has {} in it",
		"--launcher pbs --het 1:1,2:2 -- prog":                 "--het is Slurm's",
		"--launcher slurm --het 1:1,2:2 --nodes 3 -- prog":     "--het does not go with",
		"--launcher slurm --het 1:1 -- prog":                   "--het one kind of nodes",
		"--launcher slurm --het 1:1,x:2 -- prog":               `--het "x:2": want NODES:RANKS`,
	} {
		_, errs, status := result(t, launchCommand(t, append([]string{"plan"}, strings.Fields(args)...)...))
		if status != 2 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d, %q, want 2 and %q", args, status, errs, want)
		}
	}
	_, errs, status := result(t, launchCommand(t, "run", "--launcher", "pbs", "--", os.Args[0]))
	if want := "--launcher pbs is for launch plan"; status != 2 || !strings.Contains(errs, want) {
		t.Errorf("run: status %d, %q, want 2 and %q", status, errs, want)
	}
}
