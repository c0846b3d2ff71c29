package nvml

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"lockstep/internal/ccall"
	"lockstep/internal/testkit"
)

func opened(t *testing.T) *Meter {
	t.Helper()
	m, err := Open(uuid)
	testkit.Must(t, err)
	return m
}

// With NVML or without, the machine has no such device.
func TestNoSuchDevice(t *testing.T) {
	_, err := Open("GPU-00000000-0000-0000-0000-000000000000")
	var e *ccall.Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Op, "nvml") {
		t.Fatal(err)
	}
	if e.Op == "nvmlInit_v2" && !strings.Contains(err.Error(), "libnvidia-ml.so.1") && !errors.As(err, new(Result)) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

var reading = Reading{MemoryUsed: 300, MemoryTotal: 1000, Clock: 1200, MostClock: 1980, MemoryClock: 3201,
	Power: 650.5, PowerLimit: 700,
	Temperature: 71, Busy: 97, Slowed: []string{"power limit", "heat"}}

// A meter reads again and again, leaves out values that are not told, and lets go of NVML at its
// end.
func TestFakeMeter(t *testing.T) {
	fake(t, func(t *testing.T) {
		m := opened(t)
		other := opened(t)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if got := m.Read(); !reflect.DeepEqual(got, reading) {
			t.Errorf("got  %+v\nwant %+v", got, reading)
		}
		for fn, clear := range map[string]func(r *Reading){
			"nvmlDeviceGetClockInfo":                 func(r *Reading) { r.Clock, r.MemoryClock = 0, 0 },
			"nvmlDeviceGetMaxClockInfo":              func(r *Reading) { r.MostClock = 0 },
			"nvmlDeviceGetPowerUsage":                func(r *Reading) { r.Power = 0 },
			"nvmlDeviceGetEnforcedPowerLimit":        func(r *Reading) { r.PowerLimit = 0 },
			"nvmlDeviceGetTemperature":               func(r *Reading) { r.Temperature = 0 },
			"nvmlDeviceGetUtilizationRates":          func(r *Reading) { r.Busy = 0 },
			"nvmlDeviceGetCurrentClocksEventReasons": func(r *Reading) { r.Slowed = nil },
			"nvmlDeviceGetMemoryInfo_v2":             func(r *Reading) { r.MemoryUsed = 400 },
		} {
			t.Setenv("FAKENVML_FAIL", fn+"=3")
			want := reading
			clear(&want)
			if got := m.Read(); !reflect.DeepEqual(got, want) {
				t.Errorf("without %s\ngot  %+v\nwant %+v", fn, got, want)
			}
		}
		t.Setenv("FAKENVML_FAIL", "")
		if got := m.Read(); !reflect.DeepEqual(got, reading) {
			t.Errorf("got  %+v\nwant %+v", got, reading)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); !errors.Is(err, Result(1)) || !strings.Contains(err.Error(), "nvmlShutdown") ||
			!strings.Contains(err.Error(), "status 1") {
			t.Errorf("closed twice: %v", err)
		}
		if _, err := Open("GPU-0"); !errors.Is(err, Result(6)) || !strings.Contains(err.Error(), "GPU-0") {
			t.Error(err)
		}
		t.Setenv("FAKENVML_FAIL", "nvmlInit_v2=9")
		if _, err := Open(uuid); !errors.Is(err, Result(9)) {
			t.Error(err)
		}
	})
}

// An old driver has another name for the reasons of a lower clock, and lacks newer calls.
func TestFakeMeterOfOldDriver(t *testing.T) {
	fake(t, func(t *testing.T) {
		want := Reading{MemoryUsed: 400, MemoryTotal: 1000, Clock: 1200, MemoryClock: 3201, Power: 650.5,
			Temperature: 71, Busy: 97, Slowed: []string{"power supply"}}
		if got := opened(t).Read(); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}, testkit.WithoutSymbols("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMaxClockInfo",
		"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetCurrentClocksEventReasons")...)
}
