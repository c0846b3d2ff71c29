package job

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/readable"
	"lockstep/internal/testkit"
)

// allowed is the cores of this process.
func allowed(t *testing.T) (set unix.CPUSet, cores []int) {
	t.Helper()
	testkit.Must(t, unix.SchedGetaffinity(0, &set))
	return set, partOfCores(&set, 0, 1)
}

// online is a folder like /sys, of a machine with these cores.
func online(t *testing.T, cores string) (sys string) {
	t.Helper()
	sys = t.TempDir()
	file := filepath.Join(sys, onlineCores)
	testkit.Must(t, os.MkdirAll(filepath.Dir(file), 0o777))
	testkit.Must(t, os.WriteFile(file, []byte(cores+"\n"), 0o666))
	return sys
}

// Ranks share all cores out, if the process has not been bound and there is one for each.
func TestOwn(t *testing.T) {
	_, cores := allowed(t)
	all := readable.Ranges(slices.Clone(cores), ",")
	free := online(t, all)
	for ranks := 2; ranks <= min(len(cores), coresOfGo, 8); ranks++ {
		var got []int
		for r := range ranks {
			list, own := OwnCores(free, r, ranks)
			mine := partOfCores(&own, 0, 1)
			if len(mine) == 0 || list != readable.Ranges(slices.Clone(mine), ",") {
				t.Errorf("rank %d of %d: %q, which is %v", r, ranks, list, mine)
			}
			got = append(got, mine...)
		}
		if !slices.Equal(got, cores) {
			t.Errorf("%d ranks have %v of %v", ranks, got, cores)
		}
	}
	for what, list := range map[string]string{
		"one rank":         first(OwnCores(free, 0, 1)),
		"too many ranks":   first(OwnCores(free, 0, len(cores)+1)),
		"a bound process":  first(OwnCores(online(t, all+",900"), 0, 2)),
		"an unknown /sys":  first(OwnCores(t.TempDir(), 0, 2)),
		"other cores only": first(OwnCores(online(t, "900"), 0, 2)),
	} {
		if list != "" {
			t.Errorf("%s: cores %s", what, list)
		}
	}
	t.Setenv(BindTo, "none")
	if list, _ := OwnCores(free, 0, 2); list != "" {
		t.Errorf("%s=none: cores %s", BindTo, list)
	}
}

func first(list string, _ unix.CPUSet) string { return list }

func TestPart(t *testing.T) {
	set := parseCores("0-3,70-73")
	for ranks, want := range map[int][][]int{
		2: {{0, 1, 2, 3}, {70, 71, 72, 73}},
		3: {{0, 1}, {2, 3, 70}, {71, 72, 73}},
		8: {{0}, {1}, {2}, {3}, {70}, {71}, {72}, {73}},
	} {
		for r := range ranks {
			if got := partOfCores(&set, r, ranks); !slices.Equal(got, want[r]) {
				t.Errorf("rank %d of %d: %v, want %v", r, ranks, got, want[r])
			}
		}
	}
}

func TestCheckBindTo(t *testing.T) {
	for word, ok := range map[string]bool{"": true, "core": true, "none": true, "socket": false} {
		t.Setenv(BindTo, word)
		if err := CheckBindTo(); (err == nil) != ok {
			t.Errorf("%q: %v", word, err)
		}
	}
}

// A thread comes to each core, and keeps all that it may use, also after a failure.
func TestNudge(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, cores := allowed(t)
	for _, core := range cores {
		one := parseCores(strconv.Itoa(core))
		there := false
		for range 1000 { // Linux may move it on at once
			testkit.Must(t, NudgeThread(&one))
			var on uint32
			if _, _, err := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&on)), 0, 0); err != 0 {
				t.Fatal(err)
			}
			if there = int(on) == core; there {
				break
			}
		}
		if !there {
			t.Errorf("never on core %d", core)
		}
		if now, _ := allowed(t); now != before {
			t.Errorf("bound to %v, before that to %v", partOfCores(&now, 0, 1), cores)
		}
	}
	if err := NudgeThread(&unix.CPUSet{}); err == nil {
		t.Error("nudged to no core")
	}
	if now, _ := allowed(t); now != before {
		t.Errorf("bound to %v after a failure", partOfCores(&now, 0, 1))
	}
}
