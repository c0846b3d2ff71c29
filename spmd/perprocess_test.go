package spmd_test

import (
	"errors"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// --gpus-per-process has each process be several ranks of the job, which starts, goes wrong and ends as one of processes does.
func TestPerProcess(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "the ranks of a process are goroutines, and doubles test their GPUs")
	spmdtest.Ranks(t, 3)
	for _, tc := range []struct {
		what      string
		processes int
		each      string
		args      []string
		status    int
		want      []string
	}{
		{"sum", 2, "2", []string{"--log-format", "json", "--log-ranks", "all"}, 0, []string{`"ranks":4`, `"collectives":"hybrid"`, `"device":"host"`, `"rank":3,"sum":6`, `"rank":0,"sum":6`}},
		{"sum", 3, "2", []string{"--check", "--rows", "6", "--json", "-"}, 0, []string{`"ranks":6`, `"sum":15`}},
		{"sum", 0, "3", nil, 0, []string{"ranks=3", "collectives=inproc", "sum=3"}},
		{"shared", 2, "2", []string{"--log-format", "json", "--log-ranks", "all"}, 0, []string{`"rank":0,"sum":3,`, `"rank":1,"sum":3,`, `"rank":2,"sum":7,`, `"rank":3,"sum":7,`}},
		{"usage", 2, "2", nil, 2, []string{"app: no such data"}},
		{"sum", 2, "4", nil, 2, []string{"app: --rows 4: fewer than the 8 ranks"}},
		{"sum", 2, "0", nil, 2, []string{"app: --gpus-per-process 0: want 1 to 1024"}},
		{"sum", 0, "-1", nil, 2, []string{"app: --gpus-per-process -1: want 1 to 1024"}},
		{"sum", 0, "2", []string{"--ranks", "3"}, 2, []string{"app: --ranks 3 does not go with --gpus-per-process 2: "}},
		{"sum", 2, "2", []string{"--collectives", "mpi"}, 2, []string{"app: --collectives mpi does not go with --gpus-per-process 2: "}},
		{"fault raise", 2, "2", nil, 1, []string{"rank=1", "panic: out of order", "goroutine ", "local_test.go"}},
		{"fault waits", 2, "2", []string{"--timeout", "2s"}, 1, []string{"--- this job hangs: ", "NOT ARRIVED: rank 1"}},
		{"fault dies", 3, "2", []string{"--rows", "6"}, 137, []string{"signal 9"}},
		{"fault goes wrong", 3, "2", []string{"--rows", "6"}, 1, []string{"the ranks called different collectives: "}},
		{"fault goes wrong", 3, "2", []string{"--rows", "6", "--check"}, 1, []string{"rank 0 at spmd/main_test.go:", ": Barrier; rank 1 at spmd/local_test.go:", "Broadcast of 3 int32, root 5"}},
		{"fault returns", 2, "2", nil, 1, []string{"the ranks called different collectives: rank 1 has returned from the program after call 0"}},
	} {
		status, out := run(t, tc.processes, tc.what, nil, append([]string{"--gpus-per-process", tc.each}, tc.args...)...)
		if status != tc.status {
			t.Errorf("%s on %d x %s ranks %v: status %d, want %d\n%s", tc.what, tc.processes, tc.each, tc.args, status, tc.status, out)
		}
		for _, want := range tc.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s on %d x %s ranks %v does not say %q:\n%s", tc.what, tc.processes, tc.each, tc.args, want, out)
			}
		}
	}
}

// sumOfShared has each rank of two processes write its number, from 1, into the array of its process, and logs the sum of what is
// there.
func sumOfShared(w *spmd.World) error {
	x, err := spmd.AllocManagedShared[int32](w, w.Size())
	if err != nil {
		return err
	}
	if w.Rank()%2 == 0 { // one of the two of a process
		clear(x.Host())
	}
	if err := spmd.Barrier(w.Comm()); err != nil {
		return err
	}
	x.Host()[w.Rank()] = int32(w.Rank() + 1)
	if err := spmd.Barrier(w.Comm()); err != nil {
		return err
	}
	sum := int32(0)
	for _, v := range x.Host() {
		sum += v
	}
	w.Log().Info().Int32("sum", sum).Msg("done")
	return errors.Join(spmd.Barrier(w.Comm()), x.Free())
}
