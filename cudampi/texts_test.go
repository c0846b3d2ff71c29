package cudampi

import (
	"strings"
	"testing"
)

func TestAwareness(t *testing.T) {
	for _, tc := range []struct {
		env, kinds string
		known      bool
		query, gpu int
		want       bool
		reason     string
	}{
		{"", "", false, -1, -1, false, "MPI 1.0 cannot say whether it takes device memory"},
		{"", "", false, 1, -1, true, "MPIX_Query_cuda_support of MPI 1.0 says yes"},
		{"", "", false, 0, 1, false, "MPIX_Query_cuda_support of MPI 1.0 says no"},
		{"", "", false, -1, 1, true, "MPIX_GPU_query_support of MPI 1.0 says yes"},
		{"", "", false, -1, 0, false, "MPIX_GPU_query_support of MPI 1.0 says no"},
		{"", "system,mpi", true, 1, 1, false, `mpi_memory_alloc_kinds of MPI 1.0 is "system,mpi"`},
		{"", "system, cuda:host:device ,mpi", true, 0, 0, true, "mpi_memory_alloc_kinds"},
		{"", "system,cuda", true, 0, 0, true, "mpi_memory_alloc_kinds"},
		{"", "system,cuda:host", true, 1, 1, false, "mpi_memory_alloc_kinds"},
		{"", "system,rocm:device", true, 1, 1, false, "mpi_memory_alloc_kinds"},
		{"yes", "system", true, 0, 0, true, "LOCKSTEP_MPI_CUDA=yes"},
		{"no", "cuda", true, 1, 1, false, "LOCKSTEP_MPI_CUDA=no"},
	} {
		a, err := awareness(tc.env, tc.kinds, tc.known, tc.query, tc.gpu, "MPI 1.0")
		if err != nil || a.Yes != tc.want || !strings.Contains(a.Reason, tc.reason) {
			t.Errorf("%+v: %+v, %v", tc, a, err)
		}
	}
	if _, err := awareness("maybe", "", false, 1, 1, ""); err == nil ||
		!strings.Contains(err.Error(), `"maybe": want yes or no`) {
		t.Errorf("maybe: %v", err)
	}
	if _, err := CUDAAware(); err == nil {
		t.Error("MPI answers before it runs")
	}
}

func TestVersion(t *testing.T) {
	for _, tc := range []struct{ library, want string }{
		{"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022", "Open MPI 4.1.4"},
		{"MPICH Version:      4.0.2\nMPICH Release date: Thu Apr  7 12:34:45 CDT 2022\n", "MPICH 4.0.2"},
		{"Intel(R) MPI Library 2021.9 for Linux* OS\n", "Intel(R) MPI Library 2021.9 for Linux* OS"},
	} {
		if got := shortVersion(tc.library); got != tc.want {
			t.Errorf("%q is short for %q", got, tc.library)
		}
	}
	if v := Version(); v == "" {
		t.Error("the library has no version")
	}
}

func TestClasses(t *testing.T) {
	for _, r := range []Result{ErrBuffer, ErrCount, ErrType, ErrTag,
		ErrComm, ErrRank, ErrRequest, ErrRoot,
		ErrOp, ErrArg, ErrTruncate, ErrOther, ErrIntern, ErrInStatus,
		ErrPending, ErrNoMem, ErrUnknown} {
		if s := r.Error(); !strings.HasPrefix(s, "MPI_ERR_") || !strings.Contains(s, ": ") {
			t.Errorf("class %d is %q", int(r), s)
		}
	}
	if got := Result(9999).Error(); got != "MPI error class 9999" {
		t.Errorf("an unknown class is %q", got)
	}
}
