package nccl

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	if !(double{version: 22907}).in(t) {
		return
	}
	if Version() != 0 || VersionString() != "" || Path() != "" {
		t.Errorf("before Load: %d %q %q", Version(), VersionString(), Path())
	}
	check(t, Load())
	check(t, Load())
	if Version() != 22907 || VersionString() != "2.29.7" || !strings.HasSuffix(Path(), "/libnccl.so.2") {
		t.Errorf("got %d %q %q", Version(), VersionString(), Path())
	}
}

func TestNoLibrary(t *testing.T) {
	if !(double{broken: true}).in(t) {
		return
	}
	err := Load()
	if err == nil {
		t.Fatal("loaded")
	}
	for _, want := range []string{"nccl: ", "libnccl.so.2", "libnccl.so:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	if _, err2 := NewID(); err2 != err {
		t.Errorf("NewID: %v", err2)
	}
	if _, err2 := Init(context.Background(), nil, ID{}, 0, 1, Config{}); err2 != err {
		t.Errorf("Init: %v", err2)
	}
	if _, err2 := MemAlloc(nil, 8); err2 != err {
		t.Errorf("MemAlloc: %v", err2)
	}
}

// What keeps a library from being used is said, and leaves no version.
func TestRefusedLibraries(t *testing.T) {
	for name, tc := range map[string]struct {
		double
		says, silent string
	}{
		"a symbol":   {double{missing: []string{"ncclCommSplit", "ncclAlltoAll"}}, "lacks ncclCommSplit", "AlltoAll"},
		"no version": {double{missing: []string{"ncclGetVersion"}}, "lacks ncclGetVersion", "lacks ncclCommSplit"},
		"old": {double{version: 21701, missing: []string{"ncclCommSplit"}},
			"NCCL 2.17.1", "lacks"},
		"the call fails": {double{env: []string{"FAKENCCL_FAIL=ncclGetVersion=3"}}, "ncclGetVersion: ", "lacks"},
	} {
		t.Run(name, func(t *testing.T) {
			if !tc.in(t) {
				return
			}
			err := Load()
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), tc.silent) ||
				name == "old" && !strings.Contains(err.Error(), "2.18 ") || Version() != 0 {
				t.Errorf("got %v, version %d, want %q", err, Version(), tc.says)
			}
			if name == "the call fails" {
				wantError(t, err, "ncclGetVersion", ErrInternal)
			}
		})
	}
}

func TestVersionText(t *testing.T) {
	for code, want := range map[int]string{2804: "2.8.4", 20906: "2.9.6", 21800: "2.18.0", 22803: "2.28.3"} {
		if got := versionString(code); got != want {
			t.Errorf("%d is %q, want %q", code, got, want)
		}
	}
	e := &VersionError{What: "AlltoAll", Need: 22800, Have: 22005}
	if got, want := e.Error(), "AlltoAll needs NCCL 2.28, this is 2.20.5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	e.Need = 22907
	if got, want := e.Error(), "AlltoAll needs NCCL 2.29.7, this is 2.20.5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestResultText(t *testing.T) {
	// The names of nccl.h, by number.
	names := []string{"ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
		"ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress"}
	for i, name := range names {
		if got := Result(i).Error(); !strings.HasPrefix(got, name+" (") {
			t.Errorf("Result(%d) is %q, want %s", i, got, name)
		}
	}
	for _, r := range []Result{-1, 8} {
		if got := r.Error(); !strings.HasPrefix(got, "NCCL result ") {
			t.Errorf("Result(%d) is %q", int(r), got)
		}
	}
}

// TestVersionGates asks the oldest version for everything that came later.
func TestVersionGates(t *testing.T) {
	if !(double{version: 21805, missing: []string{"ncclMemAlloc", "ncclCommRegister", "ncclCommWindowRegister",
		"ncclAlltoAll", "ncclGather", "ncclScatter"}}).in(t) {
		return
	}
	c, _ := comm(t, 0, 2)
	ctx := context.Background()
	_, err := MemAlloc(c.Device(), 8)
	wantVersionError(t, err, "ncclMemAlloc needs NCCL 2.19, this is 2.18.5")
	wantVersionError(t, MemFree(c.Device(), addr(0x8000)), "ncclMemFree needs NCCL 2.19, this is 2.18.5")
	_, err = c.Register(addr(0x8000), 8)
	wantVersionError(t, err, "ncclCommRegister needs NCCL 2.19, this is 2.18.5")
	_, err = c.RegisterWindow(addr(0x8000), 8)
	wantVersionError(t, err, "ncclCommWindowRegister needs NCCL 2.27, this is 2.18.5")
	for name, cfg := range map[string]Config{
		"Config.TrafficClass needs NCCL 2.26": {TrafficClass: 3},
		"Config.NVLSCTAs needs NCCL 2.27":     {NVLSCTAs: 3},
		"Config.CTAPolicy needs NCCL 2.27":    {CTAPolicy: 1},
	} {
		_, err = Init(ctx, c.Device(), ID{}, 0, 1, cfg)
		wantVersionError(t, err, name+", this is 2.18.5")
		_, err = c.Split(ctx, 0, 0, cfg)
		wantVersionError(t, err, name+", this is 2.18.5")
	}
	wantCalls(t)
	check(t, c.Close())
}

func TestNewID(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	id, err := NewID()
	check(t, err)
	for i, b := range id {
		if int(b) != i+1 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	fail(t, "ncclGetUniqueId=2")
	_, err = NewID()
	wantError(t, err, "ncclGetUniqueId", ErrSystem, "fake: ncclGetUniqueId was told to fail")
	var r Result
	if !errors.As(err, &r) || r != 2 {
		t.Errorf("%v holds %v", err, r)
	}
}
