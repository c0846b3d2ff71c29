package process

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"lockstep/internal/testkit"
)

func TestHaving(t *testing.T) {
	const variable = "LOCKSTEP_PROCFS_TEST=this one"
	var with, others []int
	for _, env := range [][]string{
		{variable, "B=1"}, {"A=1", variable}, {variable + " not"}, {"X" + variable}, {"LOCKSTEP_PROCFS_TEST=this"},
	} {
		cmd := exec.Command("cat")
		cmd.Env = env
		in, err := cmd.StdinPipe()
		testkit.Must(t, err)
		testkit.Must(t, cmd.Start())
		defer func() {
			_ = in.Close() // which ends it
			_ = cmd.Wait()
		}()
		if slices.Contains(env, variable) {
			with = append(with, cmd.Process.Pid)
		} else {
			others = append(others, cmd.Process.Pid)
		}
	}
	all := PIDs()
	if !slices.Contains(all, os.Getpid()) {
		t.Errorf("this process, %d, is not among %v", os.Getpid(), all)
	}
	got := Having(all, variable)
	slices.Sort(got)
	slices.Sort(with)
	if !slices.Equal(got, with) {
		t.Errorf("%v have the variable, want %v", got, with)
	}
	if got := Having(others, variable); len(got) != 0 {
		t.Errorf("%v of %v have the variable, want none", got, others)
	}
}
