package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// divider is a program that has a command plan.
const divider = "divider"

// divide is that program.
func divide(args []string) {
	switch {
	case slices.Equal(args, []string{"__complete", "plan"}):
		fmt.Print("plan\tproposes settings\n:4\n")
	case args[0] != "plan":
		fmt.Println("divider ran")
	case slices.Contains(args, "--bad"):
		fmt.Fprintln(os.Stderr, "divider plan: --bad is bad")
		os.Exit(2)
	case slices.Contains(args, "json"):
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"args": args}) // the test looks at what comes
	default:
		fmt.Printf("asked with %s\n  --shard x  1 GB\n", strings.Join(args[1:], " "))
	}
	os.Exit(0)
}

// A program that has a command plan is asked for settings, and no other is started.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{divider} {
		testkit.Must(t, os.Symlink(self(t), filepath.Join(dir, name)))
	}
	program := filepath.Join(dir, divider)
	planned := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(self(t), append([]string{"plan", "--launcher", "openmpi4"}, args...)...).Output()
		testkit.Must(t, err)
		return string(out)
	}
	out := planned("--nodes", "2", "--gpus-per-node", "4", "--gpu", "A100:40", "--", program, "--model", "x")
	want := "# settings of the program: asked with --format text --nodes 2 --gpus-per-node 4 --gpu A100:40 --model " +
		"x\n#   --shard x  1 GB\n"
	if !strings.Contains(out, want) {
		t.Errorf("want %q in\n%s", want, out)
	}
	if out := planned("--gpus-per-node", "4", "--", program, "--bad"); !strings.Contains(out,
		"# settings of the program: divider plan: --bad is bad\n") {
		t.Errorf("%s", out)
	}
	var got struct {
		Lines    []json.RawMessage
		Settings struct{ Args []string }
	}
	if err := json.Unmarshal([]byte(planned("--json", "--gpus-per-node", "3", "--", program)), &got); err != nil ||
		len(got.Lines) != 1 || !slices.Equal(got.Settings.Args,
		[]string{"plan", "--format", "json", "--nodes", "1", "--gpus-per-node", "3", "--gpu", gpuOr("H200")}) {
		t.Errorf("%+v, error %v", got, err)
	}
	for _, args := range [][]string{
		{"-np", "4", "--", "/bin/echo", "x"}, {"--gpus-per-node", "4", "--", "/bin/echo", "x"},
		{"--gpus-per-node", "4", "--", program, "eval"},
		{"--gpus-per-node", "4", "--", filepath.Join(dir, "no such program")},
	} {
		if out := planned(args...); strings.Contains(out, "settings") {
			t.Errorf("%v:\n%s", args, out)
		}
	}
}

// gpuOr is the kind of this machine's GPUs, or another where it has none.
func gpuOr(other string) string {
	if s := thisSite(); s.gpu != "" {
		return s.gpu
	}
	return other
}

func TestGPUModel(t *testing.T) {
	proc := t.TempDir()
	if m := gpuModel(proc); m != "" {
		t.Errorf("%q", m)
	}
	dir := filepath.Join(proc, "driver/nvidia/gpus/0000:19:00.0")
	testkit.Must(t, os.MkdirAll(dir, 0o777))
	if err := os.WriteFile(filepath.Join(dir, "information"), []byte("Model: \t\t NVIDIA H200\nIRQ:   \t\t 305\n"),
		0o666); err != nil {
		t.Fatal(err)
	}
	if m := gpuModel(proc); m != "NVIDIA H200" {
		t.Errorf("%q", m)
	}
}
