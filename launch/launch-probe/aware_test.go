package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestAlone: the process that tries is no part of the job, and its messages travel as the job's do.
func TestAlone(t *testing.T) {
	got := alone([]string{
		"PATH=/bin", "LD_LIBRARY_PATH=/opt", "UCX_TLS=self", "LOCKSTEP_MPI_CUDA=yes", "MPIR_CVAR_CH4_NETMOD=ofi",
		"OMPI_COMM_WORLD_RANK=3", "PMIX_RANK=3", "PMI_RANK=3", "PMI2_FD=4", "SLURM_PROCID=3",
		"PRTE_LAUNCHED=1", "HYDI_CONTROL_FD=7", "OMPI_MCA_ess_base_jobid=1", "OMPI_MCA_orte_hnp_uri=x",
		"OMPI_MCA_pml=ob1", "OMPI_MCA_btl_smcuda_use_cuda_ipc=0", "OMPI_MCA_mpi_cuda_support=1",
	})
	want := []string{
		"PATH=/bin", "LD_LIBRARY_PATH=/opt", "UCX_TLS=self", "LOCKSTEP_MPI_CUDA=yes", "MPIR_CVAR_CH4_NETMOD=ofi",
		"OMPI_MCA_pml=ob1", "OMPI_MCA_btl_smcuda_use_cuda_ipc=0", "OMPI_MCA_mpi_cuda_support=1",
		"OMPI_MCA_ess_singleton_isolated=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestCrash: a signal is found, whichever process has died of it.
func TestCrash(t *testing.T) {
	for _, tc := range []struct{ script, want string }{
		{"kill -SEGV $$", "crashed with signal 11 (segmentation fault)"},
		{"echo 'SIGSEGV: segmentation violation'; echo 'PC=0x1 m=0 sigcode=1'; exit 2", "crashed with signal SIGSEGV"},
		{"echo 'fatal error: unexpected signal during runtime execution'; echo '[signal SIGBUS: bus " +
			"error code=0x2]'; exit 2", "crashed with signal SIGBUS"},
		{"echo first; echo 'MPI_Sendrecv: MPI_ERR_BUFFER'; exit 1", "failed: MPI_Sendrecv: MPI_ERR_BUFFER"},
		{"exit 3", "failed: exit status 3"},
	} {
		out, err := exec.Command("sh", "-c", tc.script).CombinedOutput()
		if got := crash(err, string(out)); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.script, got, tc.want)
		}
	}
}
