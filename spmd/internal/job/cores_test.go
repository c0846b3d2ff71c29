package job

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

func TestParseCores(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-2": {0, 1, 2}, "1,3-4,70": {1, 3, 4, 70},
		"": nil, "3-1": nil, "x": nil, "0-99999": nil, "-1": nil} {
		set := parseCores(list)
		if set.Count() != len(want) {
			t.Errorf("%q: %d cores, want %v", list, set.Count(), want)
		}
		for _, i := range want {
			if !set.IsSet(i) {
				t.Errorf("%q: core %d is not in it", list, i)
			}
		}
	}
}

// The test binds a process of its own. It takes the cores of a GPU if nobody has bound the process,
// for all of its threads and for new ones.
func TestNearGPU(t *testing.T) {
	const env = "SPMD_TEST_NEAR"
	if os.Getenv(env) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNearGPU$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		} else if strings.Contains(string(out), "--- SKIP") {
			t.Skip("this process is bound, or there is one core only")
		}
		return
	}
	var mine unix.CPUSet
	testkit.Must(t, unix.SchedGetaffinity(0, &mine))
	var cores []string
	for i := range 64 * len(mine) {
		if mine.IsSet(i) {
			cores = append(cores, strconv.Itoa(i))
		}
	}
	if len(cores) < 2 {
		t.Skip("one core")
	}
	sys := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(sys, file)
		testkit.Must(t, os.MkdirAll(filepath.Dir(file), 0o777))
		testkit.Must(t, os.WriteFile(file, []byte(text+"\n"), 0o666))
	}
	const local = "bus/pci/devices/0000:3a:00.0/local_cpulist"
	all := strings.Join(cores, ",")
	for _, tc := range []struct{ online, near, want string }{
		{all, cores[1], cores[1]},
		{all, all, ""},               // all are near
		{all, "", ""},                // it is not told
		{all + ",900", cores[1], ""}, // bound already: to fewer than there are
		{all, "900", ""},             // bound to others
	} {
		write("devices/system/cpu/online", tc.online)
		write(local, tc.near)
		if got, _ := NearGPU(sys, "0000:3A:00.0"); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
	if got, _ := NearGPU(sys, "0000:3B:00.0"); got != "" {
		t.Errorf("of a device that is not there: %q", got)
	}
	one := parseCores(cores[1])
	testkit.Must(t, KeepCores(&one))
	tasks, err := os.ReadDir("/proc/self/task")
	testkit.Must(t, err)
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err == nil && !strings.Contains(string(b), "Cpus_allowed_list:\t"+cores[1]+"\n") {
			t.Errorf("thread %s is not bound", task.Name())
		}
	}
}
