package batch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadTime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90":       90 * time.Minute,
		"1:30":     90 * time.Second,
		"12:00:00": 12 * time.Hour,
		"2-0":      48 * time.Hour,
		"1-12:30":  36*time.Hour + 30*time.Minute,
		"1-0:0:1":  24*time.Hour + time.Second,
	} {
		if got, err := ReadTime(text); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{
		"", "0", "-1", "1:2:3:4", "1-", "-", "1-2:3:4:5", "2h", "1::2", "00:00:00", "99999999",
	} {
		if got, err := ReadTime(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestParts(t *testing.T) {
	got, err := Parts("2:8:h100,4:4")
	if want := []Part{{2, 8, "h100"}, {4, 4, ""}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{
		"", "2:8", "2,4", "2:8,", "0:8,1:1", "2:0,1:1", "2:8:a b,1:1", "2:8:\n,1:1", "99999:1,1:1",
	} {
		if got, err := Parts(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

// directives are the lines of a script that are for the batch system, without reasons behind them.
func directives(script, mark string) (found []string) {
	for line := range strings.Lines(script) {
		if option, ok := strings.CutPrefix(line, mark+" "); ok {
			option, _, _ = strings.Cut(option, " # ")
			found = append(found, strings.TrimSpace(option))
		}
	}
	return found
}

// What the batch systems read of a file, and what its shell starts where a double of mpirun prints
// its arguments, one a line. None of the systems is asked here.
func TestScripts(t *testing.T) {
	dir := t.TempDir()
	double := "#!/bin/sh\nprintf '%s\\n' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "mpirun"), []byte(double), 0o777); err != nil {
		t.Fatal(err)
	}
	plain := Job{Name: "prog", Why: "16 ranks", Nodes: 2, Ranks: 16, PerNode: 8,
		Line: `mpirun -np 16 --hostfile "$PBS_NODEFILE$LSB_DJOB_HOSTFILE" prog 'a b' '{}'`}
	full := plain
	full.GPUs, full.CPUs, full.Tasks, full.Limit, full.Partition = 8, 4, 3, 90*time.Second, "gpu"
	full.Saves = "--checkpoint"
	for _, tc := range []struct {
		name  string
		write func(Job) string
		mark  string
		j     Job
		env   []string
		want  []string
		last  string // the program's argument
	}{
		{"pbs", PBS, "#PBS", plain, []string{"PBS_NODEFILE=/the hosts", "PBS_O_WORKDIR=" + dir},
			[]string{"-N prog", "-l select=2:ncpus=8:mpiprocs=8", "-l place=scatter:excl", "-j oe", "-V", "-r n"},
			"{}"},
		{"pbs, all", PBS, "#PBS", full,
			[]string{"PBS_NODEFILE=/the hosts", "PBS_O_WORKDIR=" + dir, "PBS_ARRAY_INDEX=2"},
			[]string{"-N prog", "-l select=2:ncpus=32:mpiprocs=8:ngpus=8", "-l place=scatter",
				"-l walltime=0:01:30", "-q gpu", "-J 0-2", "-j oe", "-V", "-r y"}, "2"},
		{"lsf", LSF, "#BSUB", plain, []string{"LSB_DJOB_HOSTFILE=/the hosts"},
			[]string{"-J prog", "-o prog-%J.out", "-n 16", `-R "span[ptile=8]"`, "-x", "-rn"}, "{}"},
		{"lsf, all", LSF, "#BSUB", full, []string{"LSB_DJOB_HOSTFILE=/the hosts", "LSB_JOBINDEX=3"},
			[]string{"-J prog[1-3]", "-o prog-%J_%I.out", "-n 16", `-R "span[ptile=8]"`, `-R "affinity[core(4)]"`,
				`-gpu "num=8:j_exclusive=yes"`, "-W 0:02", "-q gpu", "-r"}, "2"},
	} {
		script := tc.write(tc.j)
		if got := directives(script, tc.mark); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		cmd := exec.Command("bash", "-s")
		cmd.Stdin = strings.NewReader(script) // as bsub reads it
		cmd.Env = append(tc.env, "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if want := "-np\n16\n--hostfile\n/the hosts\nprog\na b\n" + tc.last + "\n"; err != nil || string(out) != want {
			t.Errorf("%s: %v, %q, want %q\n%s", tc.name, err, out, want, script)
		}
	}
}

// Of nodes of several kinds each has resources of its own, and srun starts all ranks as one world.
func TestSlurmParts(t *testing.T) {
	j := Job{Name: "prog", Line: "srun prog", GPUs: 8, Time: "1:00:00", Saves: "--run-dir",
		Parts: []Part{{2, 8, "h100"}, {4, 4, ""}}}
	_, parts, _ := strings.Cut(Slurm(j), "--signal=B:USR1@120")
	first, second, ok := strings.Cut(parts, "#SBATCH hetjob\n")
	if !ok {
		t.Fatal(Slurm(j))
	}
	got := [][]string{directives(first, "#SBATCH"), directives(second, "#SBATCH")}
	want := [][]string{
		{"--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--exclusive", "--constraint=h100", "--time=1:00:00"},
		{"--nodes=4", "--ntasks-per-node=4", "--gpus-per-node=4", "--exclusive", "--time=1:00:00"},
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("nodes of kind %d: %q, want %q", i, got[i], want[i])
		}
	}
	if got := Together(j.Parts); got != "--het-group=0,1" {
		t.Error(got)
	}
}
