package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// attempt is a program that fails: it writes a line to DIR/starts, and fails as HOW says for the
// first TIMES of them. With "saves" it makes a checkpoint in DIR before.
func attempt(args []string) {
	dir, how := args[0], args[2]
	times, _ := strconv.Atoi(args[1])
	f, err := os.OpenFile(dir+"/starts", os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(f, os.Getpid())
	f.Close()
	text, err := os.ReadFile(dir + "/starts")
	if err != nil {
		panic(err)
	}
	n := strings.Count(string(text), "\n")
	fmt.Fprintln(os.Stderr, "start", n)
	if how == "saves" || how == "clock" {
		step := fmt.Sprintf("%s/step-%08d", dir, 10*n)
		if err := os.MkdirAll(step, 0o777); err != nil {
			panic(err)
		}
		for name, text := range map[string]string{
			"COMPLETE": "", "index.json": fmt.Sprintf(`{"format":"x","step":%d,"serial":%d}`, 10*n, n),
		} {
			if err := os.WriteFile(step+"/"+name, []byte(text), 0o666); err != nil {
				panic(err)
			}
			if at := time.Now().Add(time.Hour); how == "clock" && n == 1 { // it was ahead once
				if err := os.Chtimes(step+"/"+name, at, at); err != nil {
					panic(err)
				}
			}
		}
		how = "5"
	}
	if n > times {
		return
	}
	switch how {
	case "panic":
		panic("a bug")
	case "says":
		fmt.Fprintln(os.Stderr, "10:11:12 ERR x.go:7: it fails = badly host=vm pid=7 rank=0")
		os.Exit(1)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	status, err := strconv.Atoi(how)
	if err != nil {
		panic(err)
	}
	os.Exit(status)
}

// What follows a failure, of each kind.
func TestRestarts(t *testing.T) {
	need(t, "openmpi4")
	host, err := os.Hostname()
	testkit.Must(t, err)
	for _, tc := range []struct {
		name   string
		flags  string
		args   string // TIMES HOW, and what stands behind in place of --checkpoint DIR
		status int
		starts int
		want   []string // each a line of standard error, from "launch: " on
	}{
		{"no restarts", "", "9 5", 5, 1, nil},
		{"good", "--restarts 3", "0 5", 0, 1, nil},
		{"once", "--restarts 3", "1 5", 0, 2,
			[]string{`rank 0: exited; status 5 after [0-9.]+ s; restart 1 of 3 in 1s, from the beginning: there is ` +
				`no checkpoint in DIR`}},
		// mpirun may leave out the signal of a rank that ends as soon as it has begun
		{"killed", "--restarts 3", "1 kill", 0, 2,
			[]string{`rank 0(?: on HOST: ended by signal 9 \(Killed\)|: exited); status 137 \(SIGKILL\) after .*; ` +
				`restart 1 of 3 in 1s, from .*`}},
		{"says why", "--restarts 1", "1 says", 0, 2,
			[]string{`rank 0 on vm: x.go:7: it fails = badly; status 1 after .* s; restart 1 of 1 in 1s, from .*`}},
		{"panic", "--restarts 1", "1 panic", 0, 2,
			[]string{`rank 0: panic: a bug; status 2 after .* s; restart 1 of 1 in 1s, from .*`}},
		{"used up", "--restarts 1", "9 5", 5, 2,
			[]string{`.*; restart 1 of 1 in 1s, .*`,
				`rank 0: exited; status 5 after .* s; --restarts 1: not started again`}},
		{"refused", "--restarts 3", "9 2", 2, 1, nil},
		{"to be queued again", "--restarts 3", "9 75", 75, 1, nil},
		{"no progress", "--restarts 9", "9 5", 5, 3,
			[]string{`.*; restart 1 of 9 in 1s, .*`, `.*; restart 2 of 9 in 2s, .*`,
				`.*; 3 starts in a row have failed without a checkpoint: not started again`}},
		{"progress", "--restarts 4", "4 saves", 0, 5, []string{
			`.*; restart 1 of 4 in 1s, from step 10, the newest checkpoint in DIR`,
			`.*; restart 2 of 4 in 1s, from step 20, .*`,
			`.*; restart 3 of 4 in 1s, from step 30, .*`, `.*; restart 4 of 4 in 1s, from step 40, .*`}},
		{"progress by another clock", "--restarts 4", "4 clock --run-dir=DIR --save-every 1", 0, 5, []string{
			`.*; restart 1 of 4 in 1s, from step 10, the newest checkpoint in DIR`,
			`.*; restart 2 of 4 in 1s, from step 20, .*`,
			`.*; restart 3 of 4 in 1s, from step 30, .*`, `.*; restart 4 of 4 in 1s, from step 40, .*`}},
		{"panic unheard", "--restarts 1 --logs plain", "1 panic", 0, 2,
			[]string{`the job has failed; status 2 after .* s; restart 1 of 1 in 1s, from .*`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if testkit.Quick() && tc.name != "once" {
				testkit.Only(t, "ends of jobs that are started again")
			}
			dir := t.TempDir()
			args := append([]string{"run", "-np", "1"}, strings.Fields(tc.flags)...)
			args = append(append(args, "--", self(t), "program", "attempt", dir),
				strings.Fields(strings.ReplaceAll(tc.args, "DIR", dir))...)
			if !strings.Contains(tc.args, "DIR") {
				args = append(args, "--checkpoint", dir)
			}
			_, errs, status := result(t, launchCommand(t, args...))
			starts, err := os.ReadFile(dir + "/starts")
			if err != nil || status != tc.status || strings.Count(string(starts), "\n") != tc.starts {
				t.Fatalf("status %d, starts %q, %v; want %d, %d\n%s", status, starts, err, tc.status, tc.starts, errs)
			}
			var said []string
			for line := range strings.Lines(errs) {
				if rest, ok := strings.CutPrefix(line, "launch: "); ok {
					said = append(said, strings.TrimSuffix(rest, "\n"))
				}
			}
			ok := len(said) == len(tc.want)
			for i := 0; ok && i < len(said); i++ {
				ok = regexp.MustCompile("^" + strings.NewReplacer("DIR", dir, "HOST", host).Replace(tc.want[i]) +
					"$").MatchString(said[i])
			}
			if !ok || len(tc.want) > 0 && tc.status != 0 && !strings.HasSuffix(errs, said[len(said)-1]+"\n") {
				t.Errorf("said %q, want %q, in\n%s", said, tc.want, errs)
			}
		})
	}
}

// A signal ends the job, and the wait for the next start.
func TestRestartsEnded(t *testing.T) {
	need(t, "openmpi4")
	t.Run("while it runs", func(t *testing.T) {
		t.Parallel()
		r := startJob(t, "run", "--restarts", "5", "-np", "2", "--oversubscribe", "--", "sh", "-c",
			`trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done`)
		r.await(t, 2, "ready")
		r.signal(t, syscall.SIGTERM)
		if status := r.status(t); status != 9 || strings.Contains(r.all.String(), "restart") {
			t.Errorf("status %d: %s", status, r.all.String())
		}
	})
	t.Run("between starts", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		cmd := launchCommand(t, "run", "--restarts", "5", "-np", "1", "--", self(t), "program", "attempt", dir, "9",
			"5")
		log, err := os.Create(dir + "/log")
		testkit.Must(t, err)
		defer log.Close()
		cmd.Stderr = log
		testkit.Must(t, cmd.Start())
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait() // the status says it
			close(ended)
		}()
		for said := ""; !strings.Contains(said, "restart 2 of 5 in 2s"); {
			text, err := os.ReadFile(log.Name())
			if said = string(text); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ended:
				t.Fatalf("it has ended: %v\n%s", cmd.ProcessState, said)
			case <-time.After(10 * time.Millisecond):
			}
		}
		testkit.Must(t, cmd.Process.Signal(syscall.SIGTERM))
		<-ended
		starts, err := os.ReadFile(dir + "/starts")
		if err != nil || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) ||
			strings.Count(string(starts), "\n") != 2 {
			t.Errorf("status %d, starts %q, %v", cmd.ProcessState.ExitCode(), starts, err)
		}
	})
}

// Each start has files of its own, and what they say of a failure is said.
func TestRestartsLogs(t *testing.T) {
	need(t, "openmpi4")
	dir := t.TempDir()
	logs := filepath.Join(dir, "some [logs]")
	_, errs, status := result(t, launchCommand(t, "run", "--restarts", "1", "--logs", logs, "-np", "1", "--", self(t),
		"program", "attempt", dir, "1", "says"))
	if status != 0 || !strings.Contains(errs, "launch: rank 0 on vm: x.go:7: it fails = badly; status 1 after") {
		t.Errorf("status %d: %s", status, errs)
	}
	for name, want := range map[string]string{"rank.0.err": "start 1\n", "restart-1/rank.0.err": "start 2\n"} {
		text, err := os.ReadFile(filepath.Join(logs, name))
		if err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
}

// A host that does not answer is left out, at the first start or at a later one, and comes back.
func TestMinRanks(t *testing.T) {
	need(t, "openmpi4")
	dir := t.TempDir()
	// The rank on nodea fails where there is another list of hosts that are gone, which holds from
	// then on. It waits for the other ranks, since mpirun ends them where one fails, and may then
	// lose what they have printed: so ran has it too.
	script := writeFile(t, dir+"/prog", `#!/bin/sh
me="$FAKE_HOST $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"
echo "$me"
echo "$me" >>"`+dir+`/ran"
[ $FAKE_HOST = nodea ] || exit 0
for next in "`+dir+`"/next.1 "`+dir+`"/next.2; do
	[ -e "$next" ] || continue
	until [ "$(grep -c " of $OMPI_COMM_WORLD_SIZE" "`+dir+`/ran")" = $OMPI_COMM_WORLD_SIZE ]; do sleep 0.01; done
	mv "$next" "`+dir+`/gone"
	exit 5
done
`, 0o755)
	const four, two = "nodea 0 of 4\nnodeb 1 of 4\nnodeb 2 of 4\nnodec 3 of 4\n", "nodea 0 of 2\nnodec 1 of 2\n"
	for _, tc := range []struct {
		name   string
		files  map[string]string // gone: hosts that do not answer; next.N: from the next start on
		flags  []string
		status int
		ran    string
		out    []string
		errs   []string
	}{
		{"all", nil, []string{"--min-ranks", "2"}, 0, four, []string{"0: nodea 0 of 4\n", "3: nodec 3 of 4\n"}, nil},
		{"without one", map[string]string{"gone": "nodeb"}, []string{"--min-ranks", "2"}, 0, two,
			[]string{"0: nodea 0 of 2\n", "1: nodec 1 of 2\n"},
			[]string{"launch: nodeb is left out: ", "; 2 of 4 ranks start\n"}},
		{"too few", map[string]string{"gone": "nodeb"}, []string{"--min-ranks", "3"}, 2, "", nil,
			[]string{"launch: 2 of 3 hosts can be used, for 2 ranks, and --min-ranks is 3 (nodeb is left out: "}},
		{"later", map[string]string{"gone": "nobody", "next.1": "nodeb", "next.2": "nobody"},
			[]string{"--min-ranks", "2", "--restarts", "2"}, 0, four + two + four, nil,
			[]string{"; restart 1 of 2 in 1s, ", "launch: nodeb is left out: ", "; 2 of 4 ranks start\n",
				"; restart 2 of 2 in 2s, ", "launch: nodeb can be used again: all 4 ranks start\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, hosts := range tc.files {
				writeFile(t, filepath.Join(dir, name), hosts, 0o644)
			}
			testkit.Must(t, os.RemoveAll(dir+"/ran"))
			rsh := agent(t, `grep -qx "$host" `+dir+`/gone && { echo "ssh: no route to $host" >&2; exit 255; }`)
			args := append([]string{"run", "--logs", "prefix", "--agent", rsh, "-H", "nodea:1,nodeb:2,nodec:1"},
				tc.flags...)
			out, errs, status := result(t, launchCommand(t, append(args, "--", script)...))
			if status != tc.status {
				t.Errorf("status %d, want %d", status, tc.status)
			}
			ran, err := os.ReadFile(dir + "/ran")
			if err != nil && tc.ran != "" {
				t.Error(err)
			}
			if got, want := slices.Sorted(strings.Lines(string(ran))),
				slices.Sorted(strings.Lines(tc.ran)); !slices.Equal(got, want) {
				t.Errorf("%q ran, want %q, in\n%s", got, want, errs)
			}
			for _, want := range tc.out {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in %q", want, out)
				}
			}
			rest := errs
			for _, want := range tc.errs {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Errorf("%q does not come in turn in\n%s", want, errs)
				}
				rest = after
			}
			if tc.errs == nil && strings.Contains(errs, "launch:") {
				t.Errorf("said %q", errs)
			}
		})
	}
}

// In a Slurm allocation each node is asked by a step of its own. srun and scontrol are doubles.
func TestMinRanksSlurm(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/scontrol", "#!/bin/sh\n[ \"$*\" = 'show hostnames n[1-3]' ] && printf 'n1\\nn2\\nn3\\n'\n",
		0o755)
	writeFile(t, dir+"/srun", `#!/bin/sh
case "$*" in
--mpi=list) echo "none pmix pmix_v4"; exit ;;
--version) echo "slurm 23.11"; exit ;;
esac
while case "$1" in --*) true ;; *) false ;; esac; do
	case "$1" in
	--nodelist=*) nodes=${1#*=} ;;
	--ntasks=*) tasks=${1#*=} ;;
	esac
	shift
done
case ",$nodes," in
*,n2,*) echo "srun: error: n2 is DOWN" >&2; exit 1 ;;
esac
[ "$1" = sh ] || echo "$tasks tasks on $nodes"
exec "$@"
`, 0o755)
	cmd := launchCommand(t, "run", "--min-ranks", "4", "--", self(t), "program", "rank")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=3",
		"SLURM_JOB_NODELIST=n[1-3]", "SLURM_NTASKS=6")
	out, errs, status := result(t, cmd)
	if status != 0 || !strings.HasPrefix(out, "4 tasks on n1,n3\n") ||
		errs != "launch: n2 is left out: srun: srun: error: n2 is DOWN; 4 of 6 ranks start\n" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}

func TestFlagOf(t *testing.T) {
	for args, want := range map[string]string{
		"": "", "--checkpoint a": "a", "--checkpoint=a=b": "a=b", "--checkpoint a --checkpoint b": "b",
		"--checkpoint": "", "-- --checkpoint a": "", "--checkpoints a": "",
	} {
		if got := flagOf(strings.Fields(args), "--checkpoint"); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

// It is known of a folder that is missing that it says nothing; package runfiles has the rest.
func TestNewestIn(t *testing.T) {
	dir := t.TempDir()
	if _, ok := newestIn(dir + "/missing"); ok {
		t.Error("a folder that is missing is seen")
	}
	if s, ok := newestIn(dir); !ok || s != nil {
		t.Errorf("an empty folder holds %v", s)
	}
}
