package measure

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

func TestCommand(t *testing.T) {
	b := Harness{Rounds: DefaultRounds, LLMC: "../llm.c/train_gpt2"}
	if got, want := b.command("train"), "bin/bench --only train --llmc ../llm.c/train_gpt2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	b.Rounds = 9
	if got, want := b.command("reduce"), "bin/bench --only reduce --rounds 9"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestGPUNames(t *testing.T) {
	for _, tc := range []struct {
		list string
		want []string
	}{
		{"GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n",
			[]string{"NVIDIA H200", "NVIDIA A100-SXM4-80GB"}},
		{"GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\n", []string{"NVIDIA H200"}},
		{"No devices found.\n", nil},
		{"", nil},
	} {
		if got := gpuNames(tc.list); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.list, got, tc.want)
		}
	}
}

// Limits and comparisons are met only on their own side of the goal, in the set's words
// for the device.
func TestRows(t *testing.T) {
	b := Harness{machine: "two cores", Rounds: DefaultRounds, GPUs: []string{"H200", "H200"}, Set: GPUSet,
		Group: "launch"}
	b.CompareTimes(Row{What: "slow", Ours: 3, Goal: 1.2}, "C", 2)
	b.CompareRates(Row{What: "fast", Ours: 3, Goal: 1}, "C", 2)
	b.Limit(Row{What: "zero", Ours: 0, Goal: 0})
	b.Limit(Row{What: "nan", Ours: math.NaN(), Goal: 1})
	for i, met := range []bool{false, true, true, false} {
		r := b.Rows[i]
		if r.Met != met || r.Bench != "launch" || r.Device != "H200" || r.Machine != "two cores, 2 x H200" {
			t.Errorf("%+v", r)
		}
	}
}

// A rank may use every core that this process may, unless the user's environment binds it.
func TestBinding(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	testkit.Must(t, err)
	mine := allowed(string(status))
	if len(mine) != 1 {
		t.Fatalf("/proc/self/status has %q", mine)
	}
	out, _, err := Outputs(nil, MPIRun(2, "cat", "/proc/self/status")...)
	if got := allowed(out); err != nil || !slices.Equal(got, []string{mine[0], mine[0]}) {
		t.Errorf("ranks may use %q, this process %q, %v", got, mine, err)
	}
	if !strings.ContainsAny(mine[0], ",-") {
		return // one core: bound and unbound are the same
	}
	t.Setenv("OMPI_MCA_hwloc_base_binding_policy", "core")
	t.Setenv("PRTE_MCA_hwloc_default_binding_policy", "core")
	out, _, err = Outputs(nil, MPIRun(1, "cat", "/proc/self/status")...)
	if got := allowed(out); err != nil || len(got) != 1 || got[0] == mine[0] {
		t.Errorf("bound to a core by the environment a rank may use %q: %v", got, err)
	}
}

// allowed returns the lines of the cores from what processes wrote about themselves.
func allowed(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if cores, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			all = append(all, strings.TrimSpace(cores))
		}
	}
	return all
}

func TestByteSize(t *testing.T) {
	for _, tc := range []struct {
		text string
		want int
		back string
	}{
		{"8B", 8, "8B"}, {"8", 8, "8B"}, {"1KiB", 1024, "1KiB"}, {"1024B", 1024, "1KiB"}, {"1536B", 1536, "1536B"},
		{"64MiB", 67108864, "64MiB"}, {"1024GiB", 1 << 40, "1024GiB"},
	} {
		var b ByteSize
		if err := b.Set(tc.text); err != nil || int(b) != tc.want || b.String() != tc.back {
			t.Errorf("%s: %d, %s, %v", tc.text, b, &b, err)
		}
	}
	for _, bad := range []string{
		"", "B", "0B", "-8B", "1.5KiB", "8b", "8MB", "1025GiB", "9223372036854775807GiB", "x",
	} {
		var b ByteSize
		if b.Set(bad) == nil {
			t.Errorf("%q is accepted as %d", bad, b)
		}
	}
}

// The output of a program counts if it has the right number of lines. Otherwise the error shows it.
func TestExactly(t *testing.T) {
	const steps = "{\"step\":1,\"loss\":3}\nnoise\n{\"step\":2,\"loss\":2}\n{\"summary\":true}\n"
	if all, err := Exactly[TrainStep](steps, 3); err != nil || len(all) != 3 || all[1].Loss != 2 || !all[2].Summary {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := Steps(steps, 2); err != nil || len(all) != 2 || all[0].Loss != 3 || all[1].Loss != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	for _, bad := range []struct {
		out  string
		want string
	}{{"", "0"}, {steps, "3"}, {"{\"loss\":x}\n", "invalid"}} {
		_, err := Exactly[TrainStep](bad.out, 1)
		_, serr := Steps(bad.out, 4)
		for _, err := range []error{err, serr} {
			if err == nil || strings.Contains(err.Error(), "%!") ||
				bad.out != "" && !strings.Contains(err.Error(), "loss") {
				t.Errorf("%q: %v", bad.out, err)
			}
		}
		if err != nil && !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%q: %v lacks %s", bad.out, err, bad.want)
		}
	}
}
