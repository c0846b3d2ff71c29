package launcher

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestDetect(t *testing.T) {
	for _, tc := range []struct {
		env  string
		want Job
	}{
		{"", Job{"none", 0, 1, ""}},
		{"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=2", Job{"openmpi4", 2, 4, "OMPI_COMM_WORLD_SIZE"}},
		{"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=2 PRTE_LAUNCHED=1",
			Job{"openmpi5", 2, 4, "OMPI_COMM_WORLD_SIZE"}},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=8",
			Job{"openmpi4", 0, 1, "OMPI_COMM_WORLD_SIZE"}},
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 PMIX_RANK=3", Job{"slurm-pmix", 3, 8, "SLURM_STEP_NUM_TASKS"}},
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 PMI_RANK=3 PMI_SIZE=8", Job{"slurm-pmi2", 3, 8, "PMI_SIZE"}},
		// under Hydra's proxy
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMI_RANK=3 PMI_SIZE=8", Job{"slurm-pmi2", 3, 8, "PMI_SIZE"}},
		{"PMI_RANK=1 PMI_SIZE=2", Job{"mpich", 1, 2, "PMI_SIZE"}},
		{"SLURM_PROCID=0 SLURM_NTASKS=8", Job{"slurm", 0, 8, "SLURM_NTASKS"}},
		{"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1", Job{"torchrun", 5, 8, "WORLD_SIZE"}},
		{"RANK=5 WORLD_SIZE=8", Job{"torchrun", 5, 8, "WORLD_SIZE"}},
		{"OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=4", Job{"none", 0, 1, ""}},
	} {
		env := map[string]string{}
		for _, kv := range strings.Fields(tc.env) {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		if got := Detect(func(k string) string { return env[k] }); got != tc.want {
			t.Errorf("%q: got %+v, want %+v", tc.env, got, tc.want)
		}
	}
}

func TestScript(t *testing.T) {
	for _, tc := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, true},
		{map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, false},
		{map[string]string{"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, false},
		{map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"},
			false},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0",
			"SLURM_NTASKS": "4"}, false},
	} {
		getenv := func(k string) string { return tc.env[k] }
		if got := Detect(getenv).Script(getenv); got != tc.want {
			t.Errorf("%v: %v", tc.env, got)
		}
	}
}

func TestCheckWorld(t *testing.T) {
	for _, tc := range []struct {
		job  Job
		size int
		ok   bool
	}{
		{Job{"none", 0, 1, ""}, 1, true},
		{Job{"openmpi4", 0, 4, "OMPI_COMM_WORLD_SIZE"}, 4, true},
		{Job{"openmpi4", 0, 4, "OMPI_COMM_WORLD_SIZE"}, 1, false},
		{Job{"slurm", 0, 8, "SLURM_NTASKS"}, 1, false},
		{Job{"slurm", 0, 8, "SLURM_NTASKS"}, 4, true}, // srun -n 4 in a larger allocation
	} {
		if err := tc.job.CheckWorld(tc.size); (err == nil) != tc.ok {
			t.Errorf("%+v in a world of %d: %v", tc.job, tc.size, err)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("OMPI_COMM_WORLD_RANK=2\nOMPI_COMM_WORLD_SIZE=4\nPMIX_RANK=2")
	f.Add("SLURM_PROCID=3\nSLURM_STEP_NUM_TASKS=8\nPMI_RANK=3\nPMI_SIZE=8")
	f.Add("SLURM_PROCID=9223372036854775807\nSLURM_NTASKS=9223372036854775807")
	f.Add("RANK=5\nWORLD_SIZE=8\nLOCAL_RANK=1")
	f.Add("PMI_RANK=-1\nPMI_SIZE=+3")
	f.Fuzz(func(t *testing.T, text string) {
		env := map[string]string{}
		for line := range strings.Lines(text) {
			k, v, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
			env[k] = v
		}
		getenv := func(k string) string { return env[k] }
		j := Detect(getenv)
		if j.Rank < 0 || j.Rank >= j.Size || j.Size > math.MaxInt32 {
			t.Fatalf("%q: rank %d of %d", text, j.Rank, j.Size)
		}
		if j.Name == "none" {
			if j.Size != 1 || j.Source != "" {
				t.Errorf("%q: %+v", text, j)
			}
			return
		}
		if size, err := strconv.Atoi(env[j.Source]); err != nil || size != j.Size {
			t.Errorf("%q: size %d from %s=%s", text, j.Size, j.Source, env[j.Source])
		}
		if err := j.CheckWorld(1); (err == nil) != (j.Size == 1) {
			t.Errorf("%q: in a world of one: %v", text, err)
		}
	})
}

func TestAbsurdLaunchers(t *testing.T) {
	for _, tc := range []struct {
		rank, size string
		ok         bool
	}{
		{"0", "1", true}, {"3", "4", true}, {"2147483646", "2147483647", true},
		{"4", "4", false}, {"-1", "4", false}, {"0", "0", false}, {"0", "-4", false}, {"0", "2147483648", false},
		{"0", "9223372036854775807", false}, {"0", "99999999999999999999", false}, {"0", "4(x2)", false},
		{"", "4", false},
	} {
		env := map[string]string{"OMPI_COMM_WORLD_RANK": tc.rank, "OMPI_COMM_WORLD_SIZE": tc.size}
		if got := Detect(func(k string) string { return env[k] }); (got.Name == "openmpi4") != tc.ok {
			t.Errorf("rank %s of %s: %+v", tc.rank, tc.size, got)
		}
	}
}

func TestKillAfter(t *testing.T) {
	const timeout = "OMPI_MCA_odls_base_sigkill_timeout"
	for _, tc := range []struct {
		launcher string
		env      map[string]string
		want     time.Duration
	}{
		{"openmpi4", nil, time.Second}, {"openmpi5", nil, time.Second}, {"slurm-pmix", nil, 0}, {"none", nil, 0},
		{"openmpi4", map[string]string{timeout: "30"}, 30 * time.Second},
		{"openmpi4", map[string]string{timeout: "-1"}, time.Second},
		{"openmpi4", map[string]string{timeout: "x", KillVariable: "9999999999999"}, math.MaxInt32 * time.Second},
		{"openmpi4", map[string]string{timeout: "1", KillVariable: "60"}, time.Minute},
	} {
		if got := (Job{Name: tc.launcher}).KillAfter(func(k string) string { return tc.env[k] }); got != tc.want {
			t.Errorf("%s, %v: %v, want %v", tc.launcher, tc.env, got, tc.want)
		}
	}
}

// mpirun starts as root where both variables of its own say so.
func TestAllowsRoot(t *testing.T) {
	for env, want := range map[string][2]bool{
		"": {}, "OMPI_ALLOW_RUN_AS_ROOT=1": {},
		"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1": {true, false},
		"PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1": {false, true},
		"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=0": {},
	} {
		getenv := func(name string) string {
			for kv := range strings.FieldsSeq(env) {
				if k, v, _ := strings.Cut(kv, "="); k == name {
					return v
				}
			}
			return ""
		}
		if got := [2]bool{AllowsRoot(getenv, BeforeOpenMPI5), AllowsRoot(getenv, OpenMPI5)}; got != want {
			t.Errorf("%s: %v, want %v", env, got, want)
		}
	}
}
