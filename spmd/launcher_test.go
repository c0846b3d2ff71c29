package spmd

import (
	"strings"
	"testing"
)

func TestDetect(t *testing.T) {
	for _, tc := range []struct {
		env  string
		want job
	}{
		{"", job{"none", 0, 1, ""}},
		{"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=2", job{"openmpi", 2, 4, "OMPI_COMM_WORLD_SIZE"}},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=8", job{"openmpi", 0, 1, "OMPI_COMM_WORLD_SIZE"}},
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 PMIX_RANK=3", job{"slurm-pmix", 3, 8, "SLURM_STEP_NUM_TASKS"}},
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 PMI_RANK=3 PMI_SIZE=8", job{"slurm-pmi2", 3, 8, "PMI_SIZE"}},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMI_RANK=3 PMI_SIZE=8", job{"slurm-pmi2", 3, 8, "PMI_SIZE"}}, // under Hydra's proxy
		{"PMI_RANK=1 PMI_SIZE=2", job{"mpich", 1, 2, "PMI_SIZE"}},
		{"SLURM_PROCID=0 SLURM_NTASKS=8", job{"slurm", 0, 8, "SLURM_NTASKS"}},
		{"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1", job{"torchrun", 5, 8, "WORLD_SIZE"}},
		{"RANK=5 WORLD_SIZE=8", job{"none", 0, 1, ""}},
		{"OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=4", job{"none", 0, 1, ""}},
	} {
		env := map[string]string{}
		for _, kv := range strings.Fields(tc.env) {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		if got := detect(func(k string) string { return env[k] }); got != tc.want {
			t.Errorf("%q: got %+v, want %+v", tc.env, got, tc.want)
		}
	}
}

func TestCheckWorld(t *testing.T) {
	for _, tc := range []struct {
		job  job
		size int
		ok   bool
	}{
		{job{"none", 0, 1, ""}, 1, true},
		{job{"openmpi", 0, 4, "OMPI_COMM_WORLD_SIZE"}, 4, true},
		{job{"openmpi", 0, 4, "OMPI_COMM_WORLD_SIZE"}, 1, false},
		{job{"slurm", 0, 8, "SLURM_NTASKS"}, 1, false},
		{job{"slurm", 0, 8, "SLURM_NTASKS"}, 4, true}, // srun -n 4 in a larger allocation
	} {
		if err := tc.job.checkWorld(tc.size); (err == nil) != tc.ok {
			t.Errorf("%+v in a world of %d: %v", tc.job, tc.size, err)
		}
	}
}

func TestSizeClass(t *testing.T) {
	for n := 1; n < 1<<24; n += 1 + n/7 {
		c := sizeClass(n)
		if c < n || c%alignment != 0 || (n > 4*alignment && c > n+n/4) || sizeClass(c) != c {
			t.Fatalf("sizeClass(%d) = %d", n, c)
		}
	}
}
