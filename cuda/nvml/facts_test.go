package nvml

import (
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/ccall"
	"lockstep/internal/testkit"
)

const uuid = "GPU-11111111-2222-3333-4444-555555555555"

// fake runs body in a process that finds the test double of NVML.
func fake(t *testing.T, body func(t *testing.T), flags ...string) {
	t.Helper()
	source, err := filepath.Abs("testdata/fakenvml.c")
	testkit.Must(t, err)
	testkit.RunWithLibraries(t, func(dir string) {
		testkit.BuildLibrary(t, dir, "libnvidia-ml.so.1", append(flags, source)...)
	}, nil, body)
}

var whole = Info{
	Driver: "580.1.2", CUDA: 13000, Name: "NVIDIA Double", MemoryUsed: 300, MemoryTotal: 1000,
	ComputeMode: "Exclusive_Process", PCI: "0001:1b:03.0", NUMA: 5, CPUs: []int{2, 63, 64}, NVLinks: 5,
	Processes: []Process{{101, 4096}, {102, -1}},
}

func wantFacts(t *testing.T, want Info) {
	t.Helper()
	got, err := Facts(uuid)
	testkit.Must(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestFakeFacts(t *testing.T) {
	fake(t, func(t *testing.T) {
		wantFacts(t, whole)
		wantFacts(t, whole) // the library was closed in between

		_, err := Facts("GPU-0")
		if !errors.Is(err, Result(6)) {
			t.Error(err)
		}
		for _, want := range []string{"nvmlDeviceGetHandleByUUID", "GPU-0"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %q", want, err)
			}
		}

		for _, fn := range []string{"nvmlInit_v2", "nvmlShutdown"} {
			t.Setenv("FAKENVML_FAIL", fn+"=9")
			var e *ccall.Error
			if _, err := Facts(uuid); !errors.Is(err, Result(9)) ||
				!errors.As(err, &e) || e.Op != fn {
				t.Errorf("%s: %v", fn, err)
			}
			t.Setenv("FAKENVML_FAIL", "")
		}
		wantFacts(t, whole)
	})
}

// A fact that is not told is left out and named; the others stand.
func TestFakeUnknown(t *testing.T) {
	fake(t, func(t *testing.T) {
		for fn, tc := range map[string]struct {
			what  string
			clear func(i *Info)
		}{
			"nvmlSystemGetDriverVersion":              {"driver version", func(i *Info) { i.Driver = "" }},
			"nvmlSystemGetCudaDriverVersion":          {"CUDA version", func(i *Info) { i.CUDA = 0 }},
			"nvmlDeviceGetName":                       {"name", func(i *Info) { i.Name = "" }},
			"nvmlDeviceGetComputeMode":                {"compute mode", func(i *Info) { i.ComputeMode = "" }},
			"nvmlDeviceGetPciInfo_v3":                 {"PCI bus id", func(i *Info) { i.PCI = "" }},
			"nvmlDeviceGetMemoryAffinity":             {"NUMA node", func(i *Info) { i.NUMA = -1 }},
			"nvmlDeviceGetCpuAffinity":                {"CPU affinity", func(i *Info) { i.CPUs = nil }},
			"nvmlDeviceGetNvLinkState":                {"NVLink 0", func(i *Info) { i.NVLinks = 0 }},
			"nvmlDeviceGetComputeRunningProcesses_v3": {"processes", func(i *Info) { i.Processes = nil }},
		} {
			t.Setenv("FAKENVML_FAIL", fn+"=15")
			want := whole
			tc.clear(&want)
			want.Unknown = []string{tc.what + ": status 15"}
			wantFacts(t, want)
		}

		// A device without NVLink leaves no fact untold, nor does a driver with one of two calls
		// for the memory.
		t.Setenv("FAKENVML_FAIL", "nvmlDeviceGetNvLinkState=3,nvmlDeviceGetMemoryInfo_v2=3")
		want := whole
		want.NVLinks, want.MemoryUsed = 0, 400
		wantFacts(t, want)
		t.Setenv("FAKENVML_FAIL", "nvmlDeviceGetMemoryInfo=3,nvmlDeviceGetMemoryInfo_v2=3")
		want = whole
		want.MemoryUsed, want.MemoryTotal, want.Unknown = 0, 0, []string{"memory: status 3"}
		wantFacts(t, want)
	})
}

// Calling a function that an old driver lacks would end the process.
func TestFakeOldDriver(t *testing.T) {
	fake(t, func(t *testing.T) {
		want := whole
		want.NUMA, want.NVLinks, want.MemoryUsed, want.ComputeMode, want.Processes = -1, 0, 400, "", nil
		missing := []string{"compute mode", "NUMA node", "NVLinks"}
		got, err := Facts(uuid)
		testkit.Must(t, err)
		for _, what := range missing {
			if !slices.Contains(got.Unknown, what+": status 13") {
				t.Errorf("%q is not in %q", what, got.Unknown)
			}
		}
		if len(got.Unknown) != len(missing) {
			t.Errorf("unknown: %q", got.Unknown)
		}
		got.Unknown = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}, testkit.WithoutSymbols("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMemoryAffinity",
		"nvmlDeviceGetNvLinkState", "nvmlDeviceGetComputeRunningProcesses_v3")...)
}

func TestFakeNoLookup(t *testing.T) {
	const lookup = "nvmlDeviceGetHandleByUUID"
	fake(t, func(t *testing.T) {
		if _, err := Facts(uuid); err == nil || !strings.Contains(err.Error(), lookup) {
			t.Error(err)
		}
	}, testkit.WithoutSymbols(lookup)...)
}

func TestSet(t *testing.T) {
	if got := set([]uint{0, 1 << 3, 5}); !slices.Equal(got, []int{67, 128, 130}) {
		t.Error(got)
	}
}
