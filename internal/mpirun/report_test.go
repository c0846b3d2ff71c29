package mpirun

import "testing"

// What several ranks say alike stands once, and what mpirun adds only where it says more.
func TestReport(t *testing.T) {
	const (
		fatal  = "=== RUN   TestX\n    x_test.go:21: again\n" + markFailed + "\n"
		other  = "    x_test.go:21: mine\n" + markFailed + "\n"
		passed = "    x_test.go:9: a note\n" + markPassed + "\n"
		dashes = "--------------------------------------------------------------------------\n"
		abort  = dashes + "MPI_ABORT was invoked on rank 1 in communicator MPI COMMUNICATOR 3\nwith errorcode 1.\n" +
			dashes +
			"[vm:7] [[2,0],0] ORTE_ERROR_LOG: Out of resource in file ../../../orte/util/show_help.c at line 507\n" +
			"[vm:7] 2 more processes have sent help message help-mpi-api.txt / mpi-abort\n" +
			"[vm:7] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n" +
			dashes + "mpirun detected that one or more processes exited with non-zero status, thus causing\n" +
			"the job to be terminated. The first process to do so was:\n\n  Process name: [[2,1],1]\n" +
			"  Exit code:    2\n" + dashes
		killed = dashes + "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n" +
			dashes
	)
	for _, tc := range []struct {
		name string
		out  []string
		own  string
		want string
	}{
		{"one", []string{passed, fatal}, abort, "rank 1|     x_test.go:21: again\n"},
		{"one has gone, another fails by it", []string{fatal, "still here\n"}, abort,
			"rank 0|     x_test.go:21: again\nrank 1| still here\nmpirun| rank 1: exited\n"},
		{"one has crashed, another fails by it", []string{"panic: x\n", fatal, passed}, abort,
			"rank 0| panic: x\nrank 1|     x_test.go:21: again\n"},
		{"all alike", []string{fatal, fatal, fatal}, abort, "ranks 0-2|     x_test.go:21: again\n"},
		{"two alike", []string{fatal, other, fatal}, abort + "more\n",
			"ranks 0, 2|     x_test.go:21: again\nrank 1|     x_test.go:21: mine\nmpirun| more\n"},
		{"at other addresses", []string{"goroutine 7 [running]:\nf(0xc001, 0x1)\n" + markFailed + "\n",
			"goroutine 21 [running]:\nf(0xc002, 0x1)\n" + markFailed + "\n"}, "",
			"ranks 0-1| goroutine 7 [running]:\nranks 0-1| f(0xc001, 0x1)\n"},
		{"at other speeds", []string{"--- PASS: T (0.00s)\n" + markFailed + "\n",
			"--- PASS: T (0.01s)\n" + markFailed + "\n"}, "",
			"ranks 0-1| --- PASS: T (0.00s)\n"},
		{"another is killed", []string{fatal, passed}, abort + killed,
			"rank 0|     x_test.go:21: again\nrank 1|     x_test.go:9: a note\n" +
				"mpirun| rank 1 on vm: ended by signal 9 (Killed)\n"},
		{"nobody says why", []string{passed, passed}, killed,
			"rank 1|     x_test.go:9: a note\nmpirun| rank 1 on vm: ended by signal 9 (Killed)\n"},
		{"only mpirun says anything", []string{"", ""}, "no room\n\n" + abort[:0] +
			"[vm:7] [[2,0],0] ORTE_ERROR_LOG: Not found in file ess.c at line 507\n",
			"mpirun| no room\nmpirun| [vm:7] [[2,0],0] ORTE_ERROR_LOG: Not found in file ess.c at line 507\n"},
	} {
		if got := report(tc.out, tc.own); got != tc.want {
			t.Errorf("%s:\n%swant\n%s", tc.name, got, tc.want)
		}
	}
}
