package telemetry

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/runfiles"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

// lines returns the values in a file of lines.
func lines[V any](t *testing.T, file string) (all []V) {
	t.Helper()
	f, err := os.Open(file)
	spmdtest.Must(t, err)
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		var v V
		if err := json.Unmarshal(in.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v in %q", file, err, in.Text())
		}
		all = append(all, v)
	}
	return all
}

type step struct {
	Step int     `json:"step"`
	Loss float64 `json:"loss"`
}

// emit opens the folder of a run on every rank, and emits some steps. It returns the folder's path.
func emit(t *testing.T, w *spmd.World, c FolderConfig, first, last int) string {
	f, err := OpenFolder(w, c)
	if err != nil {
		t.Errorf("rank %d: %v", w.Rank(), err)
		return ""
	}
	for s := first; s <= last; s++ {
		if err := w.Emit(step{s, 1 / float64(s)}); err != nil {
			t.Error(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Emit(step{Step: 1000}); err != nil { // for nobody any more
		t.Error(err)
	}
	return f.Path()
}

// A run without a name gets a folder of its own, known to all ranks, and no other run gets it.
func TestNew(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(runsEnv, "")
	begun := time.Now().Add(-time.Second)
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		a := emit(t, w, FolderConfig{}, 1, 3)
		b := emit(t, w, FolderConfig{}, 1, 1)
		if !regexp.MustCompile(`^runs/\d{4}-\d\d-\d\d-telemetry\.test-\d{6}(-\d+)?$`).MatchString(a) || a == b {
			t.Errorf("rank %d: %q and then %q", w.Rank(), a, b)
		}
		if all, err := hostdata.AllGather(w.Comm(), a); err != nil || all[0] != all[w.Size()-1] {
			t.Errorf("%v, %q", err, all)
		}
		if w.Rank() != 0 {
			return
		}
		if steps := lines[step](t, filepath.Join(a, runfiles.Log)); len(steps) != 3 || steps[1] != (step{2, 0.5}) {
			t.Errorf("the log has %v", steps)
		}
		starts := lines[start](t, filepath.Join(a, runfiles.Starts))
		host, _ := os.Hostname()
		want := map[int]string{1: "0", 3: "0-2"}[w.Size()]
		if len(starts) != 1 || starts[0].Ranks != w.Size() || len(starts[0].Hosts) != 1 ||
			starts[0].Hosts[0].Name != host || starts[0].Hosts[0].Ranks != want ||
			starts[0].Device == "" || starts[0].Libraries["MPI"] == "" || starts[0].Version != spmd.Version ||
			starts[0].Begun.Before(begun.Add(-time.Minute)) {
			t.Errorf("%+v", starts)
		}
	})
}

// A run goes on in its folder, also in one that was moved, and behind half a line of a killed
// process. No other run gets it.
func TestGoesOn(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(runsEnv, noFolder) // has no say where a folder is named
	spmdtest.RunInProcess(t, []int{2}, func(t *testing.T, w *spmd.World) {
		same := FolderConfig{Dir: "a", State: "a"}
		emit(t, w, same, 1, 4)
		if w.Rank() == 0 {
			for _, name := range []string{runfiles.Log, runfiles.Starts} {
				f, err := os.OpenFile(filepath.Join("a", name), os.O_APPEND|os.O_WRONLY, 0)
				spmdtest.Must(t, err)
				if _, err := f.WriteString(`{"step": 5, "lo`); err != nil {
					t.Fatal(err)
				}
				spmdtest.Must(t, f.Close())
			}
			spmdtest.Must(t, os.Rename("a", "b"))
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		emit(t, w, FolderConfig{Default: "b", Dir: "b", State: "./b"}, 4, 6)
		for name, c := range map[string]FolderConfig{
			"no state":  {Dir: "b"},
			"other one": {Dir: "b", State: "elsewhere"},
		} {
			_, err := OpenFolder(w, c)
			if err == nil || !strings.Contains(err.Error(),
				"--run-dir: b holds a run of telemetry.test already, begun at 20") {
				t.Errorf("%s: rank %d: %v", name, w.Rank(), err)
			}
			if early := CheckFolder(c); w.Rank() == 0 && (early == nil || early.Error() != err.Error()) {
				t.Errorf("%s: %v, and before the start %v", name, err, early)
			}
		}
		if w.Rank() != 0 {
			return
		}
		if got := lines[step](t, "b/"+runfiles.Log); len(got) != 7 || got[4].Step != 4 {
			t.Errorf("the log has %v", got)
		}
		if got := lines[start](t, "b/"+runfiles.Starts); len(got) != 2 || got[1].State != "." {
			t.Errorf("%d starts: %+v", len(got), got)
		}
	})
}

// A folder with other contents is left alone.
func TestRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(runsEnv, "")
	spmdtest.Must(t, os.MkdirAll("full", 0o777))
	spmdtest.Must(t, os.WriteFile("full/mine", []byte("x"), 0o666))
	spmdtest.Must(t, os.Mkdir("empty", 0o777))
	spmdtest.RunInProcess(t, []int{2}, func(t *testing.T, w *spmd.World) {
		for _, tc := range []struct{ dir, want string }{ // in one order on all ranks: Open is collective
			{"full", "--run-dir: full is not empty, and holds no run: name another folder"},
			{"full/mine/run", "mkdir full/mine: not a directory"},
		} {
			if f, err := OpenFolder(w, FolderConfig{Dir: tc.dir}); err == nil ||
				!strings.Contains(err.Error(), tc.want) || f != nil {
				t.Errorf("rank %d: %v, want %s", w.Rank(), err, tc.want)
			}
		}
		if err := CheckFolder(FolderConfig{Dir: "full", State: "full"}); err != nil { // the run goes on from it
			t.Error(err)
		}
		if f, err := OpenFolder(w, FolderConfig{Dir: noFolder, Default: "full"}); err != nil || f != nil ||
			f.Path("x") != "" || f.Close() != nil {
			t.Errorf("rank %d: %v, %v", w.Rank(), f, err)
		}
		if dir := emit(t, w, FolderConfig{Default: "empty"}, 1, 1); dir != "empty" {
			t.Errorf("rank %d: %q", w.Rank(), dir)
		}
		// A folder that nobody asked for does not end a run.
		if f, err := OpenFolder(w, FolderConfig{Default: "full/mine/run"}); err != nil || f != nil {
			t.Errorf("rank %d: %v, %v", w.Rank(), f, err)
		}
	})
	if there, err := os.ReadDir("full"); err != nil || len(there) != 1 {
		t.Errorf("%v, %v", err, there)
	}
}

// An empty file of starts (the disk was full, or the machine went down) refuses no run that has
// state to go on from. Without state it protects the files beside it.
func TestTornStarts(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(runsEnv, "runs")
	for name, text := range map[string]string{
		"empty": "", "half": `{"program":"tra`, "zeros": strings.Repeat("\x00", 5000),
		"huge": strings.Repeat("x", 5<<20) + "\n", "other": "[1]\n\n",
	} {
		for _, c := range []FolderConfig{
			{Dir: name + "/a", State: name + "/a"}, {Default: name + "/b", State: name + "/b"},
			{Dir: name + "/c", State: name + "/b"}, {Dir: name + "/d"},
		} {
			dir := cmp.Or(c.Dir, c.Default)
			spmdtest.Must(t, os.MkdirAll(dir, 0o777))
			spmdtest.Must(t, os.WriteFile(filepath.Join(dir, runfiles.Starts), []byte(text), 0o666))
			if c.State == dir {
				spmdtest.Must(t, os.Mkdir(filepath.Join(dir, "step-00000001"), 0o777))
			}
			if err := CheckFolder(c); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
			spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) { emit(t, w, c, 1, 2) })
			if last, err := lastStart(filepath.Join(dir, runfiles.Starts)); err != nil || last.Ranks != 3 {
				t.Errorf("%s: %+v, %v", dir, last, err)
			}
		}
		spmdtest.Must(t, os.MkdirAll(name+"/e", 0o777))
		for _, file := range []string{runfiles.Starts, "mine"} {
			spmdtest.Must(t, os.WriteFile(filepath.Join(name, "e", file), []byte(text), 0o666))
		}
		if err := CheckFolder(FolderConfig{Dir: name + "/e"}); err == nil ||
			!strings.Contains(err.Error(), "does not say of which run it is") {
			t.Errorf("%s/e: %v", name, err)
		}
	}
}

// A start without room on the disk leaves nothing of itself, the first of a run and a later one.
// The next start succeeds.
func TestNoRoomForStart(t *testing.T) {
	// In a process of its own: go test, too, has a test write a file.
	testkit.RunWithLibraries(t, func(string) {}, nil, noRoomForStart)
}

func noRoomForStart(t *testing.T) {
	t.Chdir(t.TempDir())
	same := FolderConfig{Dir: "a", State: "a"}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	for n := range 2 {
		var was unix.Rlimit
		spmdtest.Must(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &was))
		before, _ := os.ReadFile("a/" + runfiles.Starts)
		err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(len(before)) + 100, Max: was.Max})
		spmdtest.Must(t, err)
		spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
			_, err := OpenFolder(w, same)
			if err == nil || !strings.Contains(err.Error(), "file too large") {
				t.Errorf("start %d: rank %d: %v", n, w.Rank(), err)
			}
		})
		spmdtest.Must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &was))
		if after, _ := os.ReadFile("a/" + runfiles.Starts); string(after) != string(before) {
			t.Errorf("start %d leaves %d bytes, and there were %d", n, len(after), len(before))
		}
		if left, err := os.ReadDir("a"); err != nil || len(left) != 2*n {
			t.Errorf("start %d: %v, %v", n, left, err)
		}
		spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) { emit(t, w, same, 1, 2) })
		if got := lines[start](t, "a/"+runfiles.Starts); len(got) != n+1 {
			t.Errorf("%d starts", len(got))
		}
	}
}

// A run whose log cannot be written goes on. Close says so if the folder was asked for.
func TestFails(t *testing.T) {
	t.Chdir(t.TempDir())
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, named := range []bool{true, false} {
			c := FolderConfig{Default: "unnamed"}
			t.Setenv(runsEnv, "runs")
			if named {
				c = FolderConfig{Dir: "named"}
			}
			f, err := OpenFolder(w, c)
			spmdtest.Must(t, err)
			spmdtest.Must(t, f.log.Close())
			if err := w.Emit(step{1, 1}); err != nil {
				t.Error(err)
			}
			if err := f.Close(); (err != nil) != named || err != nil && !errors.Is(err, os.ErrClosed) {
				t.Errorf("named %v: %v", named, err)
			}
			if err := f.Close(); err != nil {
				t.Errorf("the second Close: %v", err)
			}
		}
	})
}
