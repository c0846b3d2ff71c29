package launcher

import (
	"bytes"
	"strings"
	"testing"
)

// What Open MPI 4.1.4 and MPICH 4.0.2 print when a job fails, and what is left of it.
func TestSplit(t *testing.T) {
	const (
		dashes = "--------------------------------------------------------------------------\n"
		abort  = dashes + "MPI_ABORT was invoked on rank 1 in communicator MPI COMMUNICATOR 3 DUP FROM 0\n" +
			"with errorcode 1.\n\n" +
			"NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n" +
			"You may or may not see output from other processes, depending on\nexactly when Open MPI kills them.\n" +
			dashes
		others = "[n1:4711] 2 more processes have sent help message help-mpi-api.txt / mpi-abort\n" +
			"[n1:4711] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n"
		primary = dashes + "Primary job  terminated normally, but 1 process returned\n" +
			"a non-zero exit code. Per user-direction, the job has been aborted.\n" + dashes
		first = dashes + "mpirun detected that one or more processes exited with non-zero status, thus causing\n" +
			"the job to be terminated. The first process to do so was:\n\n  Process name: [[21446,1],0]\n" +
			"  Exit code:    2\n" + dashes
		killed = dashes + "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).\n" +
			dashes
		out = "[n1:4711] [[21536,0],0] ORTE_ERROR_LOG: Out of resource in file ../../../orte/util/show_help.c at " +
			"line 501\n"
		pmix       = "[n1:4711] PMIX ERROR: UNREACHABLE in file ../../../src/server/pmix_server.c at line 2198\n"
		improperly = dashes + "mpirun has exited due to process rank 1 with PID 0 on\nnode n1 exiting improperly. " +
			"There are three reasons this could occur:\n\n1. this process did not call \"init\" before exiting\n" +
			dashes
		slots = dashes + "There are not enough slots available in the system to satisfy the 9\n" +
			"slots that were requested by the application:\n\n  bin/train\n" + dashes
		hydra = "\n" + "===================================================================================\n" +
			"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 9\n" +
			"===================================================================================\n" +
			"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n" +
			"This typically refers to a problem with your application.\nPlease see the FAQ page for debugging " +
			"suggestions\n"
	)
	for _, tc := range []struct {
		name, from, to string
		endings        int // bytes
		errors         string
	}{
		{"nothing", "", "", 0, ""},
		{"refusal", primary + first, "", len(primary + first), ""},
		{"error", "0: ERR it failed\n" + abort + others, "0: ERR it failed\n", len(abort + others), ""},
		{"inner errors", "a\n" + out + "0: b\n" + pmix + abort, "a\n0: b\n", len(abort), out + pmix},
		{"another help message", abort +
			"[n1:1] 2 more processes have sent help message help-mpi-btl-base.txt / btl:no-nics\n",
			"[n1:1] 2 more processes have sent help message help-mpi-btl-base.txt / btl:no-nics\n", len(abort), ""},
		{"killed", killed, "", len(killed), ""},
		{"exit", improperly, "", len(improperly), ""},
		{"cannot start", slots, slots, 0, ""},
		{"Hydra", "\n" + hydra[1:], "\n", len(hydra) - 1, ""},
		{"a program's rule", "1: " + dashes + "table\n", "1: " + dashes + "table\n", 0, ""},
		{"a frame that does not end", dashes + "MPI_ABORT was invoked on rank 1",
			dashes + "MPI_ABORT was invoked on rank 1", 0, ""},
		{"a line that does not end", "half a line", "half a line", 0, ""},
		{"a long frame", dashes + strings.Repeat("x\n", mostFramed) + dashes,
			dashes + strings.Repeat("x\n", mostFramed) + dashes, 0, ""},
	} {
		var to bytes.Buffer
		endings, errors := SplitOutput(&to, strings.NewReader(tc.from))
		if to.String() != tc.to || len(endings) != tc.endings || string(errors) != tc.errors {
			t.Errorf("%s: passed on %q and kept %q and %q, want %q, %d bytes and %q", tc.name, &to, endings, errors,
				tc.to, tc.endings, tc.errors)
		}
	}
}
