package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep/internal/testkit"
)

// On a machine without Slurm a script says so on one line, and does not blame a Slurm that is not
// there.
func TestNoSlurm(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o777))
	for _, name := range []string{"train", "reduce", "matvec", "stencil"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "bin", name), nil, 0o777))
	}
	scripts, err := filepath.Glob("slurm/*.sbatch")
	if err != nil || len(scripts) < 6 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	for _, file := range scripts {
		name := filepath.Base(file)
		if name == "train-mpirun.sbatch" { // its mpirun does without srun
			continue
		}
		cmd := exec.Command("/bin/bash", batchScript(t, name))
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + t.TempDir()}
		out, err := cmd.CombinedOutput()
		if want := "srun is not in PATH: type sbatch launch/slurm/" + name +
			" on a cluster with Slurm\n"; err == nil || string(out) != want {
			t.Errorf("%s: %v, %q, want %q", name, err, out, want)
		}
	}
}
