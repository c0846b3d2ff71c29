package launcher

import "testing"

// What mpirun says first when a rank has failed. Where the rank ends as soon
// as it has begun, that is all.
const (
	onePrimary = "--------------------------\nPrimary job  terminated normally, but 1 process returned\n" +
		"a non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------\n"
	manyPrimary = "--------------------------\nPrimary job  terminated normally, but 2 processes returned\n" +
		"non-zero exit codes. Per user-direction, the job has been aborted.\n--------------------------\n"
	whichRank = "--------------------------\nmpirun detected that one or more processes exited with non-zero " +
		"status, thus causing\nthe job to be terminated. The first process to do so was:\n\n" +
		"  Process name: [[21446,1],5]\n  Exit code:    7\n--------------------------\n"
)

func TestReadCause(t *testing.T) {
	for _, tc := range []struct {
		text  string
		ranks int
		want  string
	}{
		{"mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).", 2,
			"rank 1 on n1: ended by signal 9 (Killed)"},
		{"mpirun has exited due to process rank 1 with PID 0 on\nnode n1 exiting improperly. There are three", 2,
			"rank 1 on n1: exited without leaving MPI"},
		{whichRank, 8, "rank 5: exited"},
		{onePrimary + whichRank, 8, "rank 5: exited"},
		{onePrimary, 1, "rank 0: exited"},
		{onePrimary, 8, "a rank exited"},
		{manyPrimary, 8, "2 ranks exited"},
		{"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 9\n====",
			2, "a rank on n1 ended with 9"},
		{"MPI_ABORT was invoked on rank 1", 2, ""},
	} {
		if got := ReadCause([]byte(tc.text), tc.ranks).String(); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
	}
}

func TestHear(t *testing.T) {
	for _, tc := range []struct {
		line string
		want string
	}{
		{"07:15:52 INF checkpoint saved host=vm rank=0", ""},
		{"07:15:52 ERR the rank died: killed (by what) host=vm pid=19382 rank=2\n",
			"rank 2 on vm: the rank died: killed (by what)"},
		{"12: 07:15:52 ERR a=b fails host=n1.x rank=12\n", "rank 12 on n1.x: a=b fails"},
		{"07:15:52 ERR the program's own, of no rank", ""},
		{`{"level":"error","rank":3,"host":"n2","pid":7,"time":"x","message":"it \u001b[2J failed"}`,
			`rank 3 on n2: it \x1b[2J failed`},
		{`{"level":"error","message":"the program's own"}`, ""},
		{`{"level":"error",`, ""},
		{"1: panic: runtime error: index out of range", "panic: runtime error: index out of range"},
		{"fatal error: all goroutines are asleep", "fatal error: all goroutines are asleep"},
		{"no panic: here", ""},
	} {
		h, ok := Hear([]byte(tc.line))
		if h.String() != tc.want || ok != (tc.want != "") {
			t.Errorf("%q: heard %q, want %q", tc.line, h, tc.want)
		}
	}
}
