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
				`--label prog ''"$index"'' &`},
			"srun --mpi=pmix --nodes=2 --ntasks=6 "},
		{"--launcher slurm --het 1:2:big,2:3", "sbatch",
			[]string{"#SBATCH --nodes=1 ", "#SBATCH --constraint=big ", "#SBATCH hetjob\n",
				"#SBATCH --nodes=2 ", "--label prog '{}' &"},
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

// A file that could not do what was asked is not written.
func TestNoFile(t *testing.T) {
	for args, want := range map[string]string{
		"--launcher pbs -H a:2 -- prog":                        "--launcher pbs: it says itself which hosts a job has",
		"--launcher lsf --time 2h -- prog":                     "--time 2h: want minutes",
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
