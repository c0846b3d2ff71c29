package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// planned submits the file that launch plan prints, of the program that says where its ranks are.
func planned(t *testing.T, c *slurm, args ...string) *submitted {
	t.Helper()
	self, err := os.Executable()
	testkit.Must(t, err)
	dir := t.TempDir()
	args = append(append([]string{"plan", "--json", "--launcher", "slurm"}, args...), "--", self,
		"--device", "host", "--seed={}")
	out, err := c.command(t, dir, filepath.Join(c.bin, "launch"), args...)
	var doc struct{ Sbatch string }
	if bad := json.Unmarshal([]byte(out), &doc); err != nil || bad != nil {
		t.Fatalf("launch %v: %v, %v\n%s", args, err, bad, out)
	}
	if !strings.Contains(doc.Sbatch, "--array") { // there is no number to take
		doc.Sbatch = strings.Replace(doc.Sbatch, "'--seed={}'", "", 1)
	}
	file := filepath.Join(dir, "job")
	testkit.Must(t, os.WriteFile(file, []byte(doc.Sbatch), 0o666))
	return c.submit(t, dir, "--export=ALL,"+slurmRankEnv+"=1", file)
}

// ranksIn are the ranks that have said where they are, in the log of a job, which may have a label
// before each line.
func ranksIn(t *testing.T, log string) map[int]slurmPlace {
	t.Helper()
	ranks := map[int]slurmPlace{}
	for line := range strings.Lines(log) {
		if at := strings.Index(line, ": {"); at >= 0 {
			line = line[at+len(": "):]
		}
		if strings.HasPrefix(line, "{") {
			var p slurmPlace
			if err := json.Unmarshal([]byte(line), &p); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			ranks[p.Rank] = p
		}
	}
	return ranks
}

// A job on nodes of two kinds is one world: of 2 ranks on a node and 3 on the other.
func TestSlurmPlannedKinds(t *testing.T) {
	c := startSlurm(t)
	j := planned(t, c, "--cpus-per-task", "1", "--het", "1:2,1:3")
	j.end(t, "COMPLETED")
	got := ranksIn(t, j.log(t))
	if len(got) != 5 {
		t.Fatalf("%d ranks: %v\n%s", len(got), got, j.log(t))
	}
	for r := range 5 {
		node, local := min(r/2, 1), r
		if node == 1 {
			local = r - 2
		}
		want := slurmPlace{r, local, 2 + node, node, 2, got[r].Host, got[r].GPUs}
		if got[r] != want || (got[r].Host == got[0].Host) != (node == 0) {
			t.Errorf("rank %d: %+v, want %+v", r, got[r], want)
		}
	}
}

// Each job of an array has a log and a number of its own.
func TestSlurmPlannedArray(t *testing.T) {
	c := startSlurm(t)
	j := planned(t, c, "--cpus-per-task", "1", "--nodes", "1", "--ranks-per-node", "2", "--array", "3")
	if all := j.end(t, "COMPLETED"); len(all) != 3 {
		t.Errorf("%d jobs: %+v", len(all), all)
	}
	for i := range 3 {
		files, err := filepath.Glob(filepath.Join(j.dir, fmt.Sprintf("*-%s_%d.out", j.id, i)))
		if err != nil || len(files) != 1 {
			t.Fatalf("logs of job %d: %v, %v", i, files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil || len(ranksIn(t, string(text))) != 2 ||
			strings.Count(string(text), fmt.Sprintf(": seed %d\n", i)) != 2 {
			t.Errorf("job %d: %v\n%s", i, err, text)
		}
	}
}
