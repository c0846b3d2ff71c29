package plan

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// The file for sbatch asks for what the flags say, and has the line that is printed above it.
func TestFiles(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string // in the file
		line string   // in the line
	}{
		{"--nodes 2 --ranks-per-node 3 --array 4",
			[]string{"#SBATCH --array=0-3 ", "#SBATCH --nodes=2 ", "index=$SLURM_ARRAY_TASK_ID\n",
				`--label prog ''"$index"''` + "\n"},
			"srun --mpi=pmix --nodes=2 --ntasks=6 "},
		{"--het 1:2:big,2:3 --gpus-per-node 8 --time 1:00:00",
			[]string{"#SBATCH --nodes=1 ", "#SBATCH --ntasks-per-node=2 ", "#SBATCH --gpus-per-node=2 ",
				"#SBATCH --exclusive ", "#SBATCH --constraint=big ", "#SBATCH --time=1:00:00 ", "#SBATCH hetjob\n",
				"#SBATCH --nodes=2 ", "#SBATCH --ntasks-per-node=3 ", "#SBATCH --gpus-per-node=3 ",
				"#SBATCH --exclusive ", "#SBATCH --time=1:00:00 ", "--label prog '{}'\n"},
			"srun --mpi=pmix --het-group=0,1 --cpu-bind=none --kill"},
	} {
		args := append(append([]string{"plan", "--json", "--launcher", "slurm"}, strings.Fields(tc.args)...),
			"--", "prog", "{}")
		out, errs, status := result(t, launchCommand(t, args...))
		var doc struct {
			Sbatch string
			Lines  []struct{ Shell string }
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil || status != 0 {
			t.Fatalf("%s: status %d, %v\n%s%s", tc.args, status, err, out, errs)
		}
		rest := doc.Sbatch
		for _, want := range tc.want { // in this order
			_, behind, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%s: %q is not in its place in the file:\n%s", tc.args, want, doc.Sbatch)
			}
			rest = behind
		}
		if len(doc.Lines) != 1 || !strings.Contains(doc.Lines[0].Shell, tc.line) {
			t.Errorf("%s: %q is not in the line %q", tc.args, tc.line, doc.Lines)
		}
		text, _, _ := result(t, launchCommand(t, append(args[:1], args[2:]...)...))
		if !strings.HasSuffix(text, "\n# a file for sbatch\n"+doc.Sbatch) {
			t.Errorf("%s prints\n%s", tc.args, text)
		}
	}
}

// Slurm starts a job again if its program goes on, and the file says what has said so.
func TestSaves(t *testing.T) {
	for _, tc := range []struct{ args, says string }{
		{"-- prog --checkpoint runs/a", "--checkpoint"}, {"-- prog --run-dir=runs/a", "--run-dir"},
		{"--checkpoints runs/a -- prog", "--checkpoints"}, {"-- prog --run-dir off", ""}, {"-- prog", ""},
	} {
		args := append([]string{"plan", "--launcher", "slurm", "--nodes", "2"}, strings.Fields(tc.args)...)
		out, errs, status := result(t, launchCommand(t, args...))
		_, file, _ := strings.Cut(out, "\n# a file for ")
		saves := tc.says != ""
		if status != 0 || strings.Contains(file, "\n#SBATCH --requeue ") != saves ||
			strings.Contains(file, "kill -USR1") != saves ||
			saves && !strings.Contains(file, "since "+tc.says+" says where") {
			t.Errorf("%s: status %d\n%s%s", tc.args, status, errs, file)
		}
	}
}

// A plan without GPUs does not speak of them; one with GPUs gives the reasons that they are.
func TestWithoutGPUs(t *testing.T) {
	for _, launcher := range []string{"all", "slurm"} {
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
	testkit.Must(t, err)
	lines := o.lines(j, s)
	var b strings.Builder
	testkit.Must(t, write(&b, lines, o.file(lines, j), nil, false))
	return b.String()
}

// A file that could not do what was asked is not written.
func TestNoFile(t *testing.T) {
	for args, want := range map[string]string{
		"--launcher pbs -- prog":                           "--launcher pbs: unknown, want auto, openmpi4",
		"--array 3 -- prog {}":                             "--array and --het are of files for sbatch",
		"--launcher openmpi4 --het 1:1,2:2 -- prog":        "--array and --het are of files for sbatch",
		"--launcher slurm --array 1 -- prog {}":            "--array 1: give a number from 2 to",
		"--launcher slurm --array 3 -- prog":               "no argument of the program has {} in it",
		"--launcher slurm --het 1:1,2:2 --nodes 3 -- prog": "--het does not go with",
		"--launcher slurm --het 1:1 -- prog":               "--het one kind of nodes",
		"--launcher slurm --het 1:1,x:2 -- prog":           `--het "x:2": want NODES:RANKS`,
	} {
		_, errs, status := result(t, launchCommand(t, append([]string{"plan"}, strings.Fields(args)...)...))
		if status != 2 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d, %q, want 2 and %q", args, status, errs, want)
		}
	}
	_, errs, status := result(t, launchCommand(t, "run", "--launcher", "all", "--", os.Args[0]))
	if want := "--launcher all is for launch plan"; status != 2 || !strings.Contains(errs, want) {
		t.Errorf("run: status %d, %q, want 2 and %q", status, errs, want)
	}
}

func TestParts(t *testing.T) {
	got, err := readParts("2:8:h100,4:4")
	if want := []part{{2, 8, "h100"}, {4, 4, ""}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{
		"", "2:8", "2,4", "2:8,", "0:8,1:1", "2:0,1:1", "2:8:a b,1:1", "2:8:\n,1:1", "99999:1,1:1",
	} {
		if got, err := readParts(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}
