package cuda

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// things are one of each kind.
type things struct {
	d    *Device
	s    *Stream
	e, f *Event
	g    *Graph
	x    *Exec
	m    *Module
	k    *Function
	deep *Function
	c    *Callback
	p, h unsafe.Pointer
	u    unsafe.Pointer // managed
}

func make1(t *testing.T) *things {
	t.Helper()
	d := try(Open(0))(t)
	o := &things{d: d, s: try(d.NewStream(0))(t), e: try(d.NewTimedEvent())(t), f: try(d.NewTimedEvent())(t)}
	o.p, o.h = try(d.Malloc(64))(t), try(d.MallocHost(64))(t)
	o.u = try(d.MallocManaged(64))(t)
	o.m = try(d.LoadModule([]byte("image")))(t)
	o.k, o.deep = try(o.m.Function("k"))(t), try(o.m.Function("deep"))(t)
	o.c = NewCallback(func() {})
	must(t, o.s.BeginCapture(Relaxed))
	must(t, o.s.Fill(o.p, 1, 0, 64))
	o.g = try(o.s.EndCapture())(t)
	o.x = try(o.g.Instantiate())(t)
	must(t, o.e.Record(o.s))
	must(t, o.f.Record(o.s))
	return o
}

func (o *things) close() error {
	o.c.Close()
	return errors.Join(o.x.Close(), o.g.Close(), o.m.Close(), o.e.Close(), o.f.Close(), o.s.Close(),
		o.d.Free(o.p), o.d.Free(o.u), o.d.FreeHost(o.h), o.d.Close())
}

func fakeStatuses(t *testing.T) {
	second := func(_ any, err error) error { return err }
	first := func(o *things) []Node {
		list := make([]Node, 1)
		return list[:try(o.g.Followers(0, list))(t)]
	}
	one := [3]int{1, 1, 1}
	covered := map[string]bool{
		"cuInit": true, "cuDriverGetVersion": true, // fakeLoading
		"cuGetErrorName": true, "cuGetErrorString": true, // no status that would matter
		"cuEventElapsedTime": true, // where the newer one is missing
	}
	for _, c := range []struct {
		symbol, op string
		call       func(o *things) error
	}{
		{"cuDeviceGetCount", "", func(*things) error { return second(Count()) }},
		{"cuDeviceGet", "", func(*things) error { return second(UUIDOf(0)) }},
		{"cuDeviceGetUuid_v2", "cuDeviceGetUuid", func(*things) error { return second(UUIDOf(0)) }},
		{"cuDeviceGetUuid", "", func(*things) error { return second(Open(0)) }},
		{"cuDeviceGetName", "", func(*things) error { return second(Open(0)) }},
		{"cuDeviceGetPCIBusId", "", func(*things) error { return second(Open(0)) }},
		{"cuDeviceTotalMem_v2", "cuDeviceTotalMem", func(*things) error { return second(Open(0)) }},
		{"cuDeviceGetAttribute", "", func(*things) error { return second(Open(0)) }},
		{"cuDevicePrimaryCtxRetain", "", func(*things) error { return second(Open(0)) }},
		{"cuCtxGetStreamPriorityRange", "", func(*things) error { return second(Open(0)) }},
		{"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", func(o *things) error { return o.d.Close() }},
		{"cuCtxGetCurrent", "", func(o *things) error { return o.s.Synchronize() }},
		{"cuCtxSetCurrent", "", func(o *things) error { return onFreshThread(o.s.Synchronize) }},
		{"cuCtxSynchronize", "", func(o *things) error { return o.d.Synchronize() }},
		{"cuMemGetInfo_v2", "cuMemGetInfo", func(o *things) error { _, _, err := o.d.MemInfo(); return err }},
		{"cuMemGetInfo_v2", "cuMemGetInfo", func(o *things) error { return second(o.d.MallocManaged(1)) }},
		{"cuMemAlloc_v2", "cuMemAlloc", func(o *things) error { return second(o.d.Malloc(1)) }},
		{"cuMemFree_v2", "cuMemFree", func(o *things) error { return o.d.Free(o.p) }},
		{"cuMemHostAlloc", "", func(o *things) error { return second(o.d.MallocHost(1)) }},
		{"cuMemFreeHost", "", func(o *things) error { return o.d.FreeHost(o.h) }},
		{"cuMemAllocManaged", "", func(o *things) error { return second(o.d.MallocManaged(1)) }},
		{"cuMemPrefetchAsync_v2", "cuMemPrefetchAsync", func(o *things) error { return o.s.Prefetch(o.u, 64, o.d) }},
		{"cuMemAdvise_v2", "cuMemAdvise", func(o *things) error { return o.d.Advise(o.u, 64, SetReadMostly, nil) }},
		{"cuMemHostRegister_v2", "cuMemHostRegister", func(o *things) error { return o.d.RegisterHost(o.h, 64) }},
		{"cuMemHostUnregister", "", func(o *things) error { return o.d.UnregisterHost(o.h) }},
		{"cuMemGetAddressRange_v2", "cuMemGetAddressRange",
			func(o *things) error { return second(o.d.IPCHandle(o.p)) }},
		{"cuIpcGetMemHandle", "", func(o *things) error { return second(o.d.IPCHandle(o.p)) }},
		{"cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle",
			func(o *things) error { return second(o.d.OpenIPC(IPCHandle{})) }},
		{"cuIpcCloseMemHandle", "", func(o *things) error { return (&Foreign{d: o.d, base: o.p}).Close() }},
		{"cuDeviceCanAccessPeer", "", func(o *things) error {
			t.Setenv("FAKECUDA_DEVICES", "2")
			_, _, err := o.d.CanAccess(try(UUIDOf(1))(t))
			return err
		}},
		{"cuCtxEnablePeerAccess", "", func(o *things) error { return o.d.Reach(o.p) }},
		{"cuDeviceGetP2PAttribute", "", func(o *things) error {
			t.Setenv("FAKECUDA_DEVICES", "2")
			_, _, err := o.d.NativeAtomics(try(UUIDOf(1))(t))
			return err
		}},
		{"cuStreamWaitValue32_v2", "cuStreamWaitValue32", func(o *things) error { return o.s.WaitValue(o.h, 0) }},
		{"cuStreamWriteValue32_v2", "cuStreamWriteValue32", func(o *things) error { return o.s.WriteValue(o.h, 0) }},
		{"cuMemcpyAsync", "", func(o *things) error { return o.s.Copy(o.p, o.h, 64) }},
		{"cuMemsetD8Async", "", func(o *things) error { return o.s.Fill(o.p, 1, 0, 1) }},
		{"cuMemsetD16Async", "", func(o *things) error { return o.s.Fill(o.p, 2, 0, 1) }},
		{"cuMemsetD32Async", "", func(o *things) error { return o.s.Fill(o.p, 4, 0, 1) }},
		{"cuStreamCreateWithPriority", "", func(o *things) error { return second(o.d.NewStream(0)) }},
		{"cuStreamDestroy_v2", "cuStreamDestroy", func(o *things) error { return o.s.Close() }},
		{"cuStreamQuery", "", func(o *things) error { return second(o.s.Query()) }},
		{"cuStreamSynchronize", "", func(o *things) error { return o.s.Synchronize() }},
		{"cuStreamWaitEvent", "", func(o *things) error { return o.s.Wait(o.e) }},
		{"cuStreamBeginCapture_v2", "cuStreamBeginCapture", func(o *things) error { return o.s.BeginCapture(Global) }},
		{"cuStreamEndCapture", "", func(o *things) error { return second(o.s.EndCapture()) }},
		{"cuStreamIsCapturing", "", func(o *things) error { return second(o.s.Capturing()) }},
		{"cuStreamIsCapturing", "", func(o *things) error { return o.s.Abandon() }},
		{"cuLaunchKernel", "", func(o *things) error { return o.s.Launch(o.k, one, one, 0, nil) }},
		{"cuLaunchKernelEx", "", func(o *things) error {
			must(t, o.k.Load())
			return o.s.LaunchEarly(o.k, one, one, 0, nil)
		}},
		{"cuLaunchHostFunc", "", func(o *things) error { return o.s.HostFunc(o.c) }},
		{"cuEventCreate", "", func(o *things) error { return second(o.d.NewEvent()) }},
		{"cuEventDestroy_v2", "cuEventDestroy", func(o *things) error { return o.e.Close() }},
		{"cuEventRecord", "", func(o *things) error { return o.e.Record(o.s) }},
		{"cuEventQuery", "", func(o *things) error { return second(o.e.Query()) }},
		{"cuEventQuery", "", func(o *things) error { return second(o.e.Spin(time.Hour)) }},
		{"cuEventSynchronize", "", func(o *things) error { return o.e.Synchronize() }},
		{"cuEventElapsedTime_v2", "cuEventElapsedTime", func(o *things) error { return second(o.f.Elapsed(o.e)) }},
		{"cuGraphInstantiateWithFlags", "cuGraphInstantiate",
			func(o *things) error { return second(o.g.Instantiate()) }},
		{"cuGraphGetNodes", "", func(o *things) error { return second(o.g.Nodes()) }},
		{"cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo",
			func(o *things) error { return second(o.s.CaptureEnds(nil)) }},
		{"cuGraphAddEventRecordNode", "", func(o *things) error { return o.g.Records(o.e, nil, nil) }},
		{"cuGraphAddDependencies_v2", "cuGraphAddEventRecordNode",
			func(o *things) error { return o.g.Records(o.e, nil, first(o)) }},
		{"cuGraphGetRootNodes", "cuGraphNodeGetDependentNodes",
			func(o *things) error { return second(o.g.Followers(0, nil)) }},
		{"cuGraphNodeGetDependentNodes_v2", "cuGraphNodeGetDependentNodes",
			func(o *things) error { return second(o.g.Followers(first(o)[0], nil)) }},
		{"cuGraphDestroy", "", func(o *things) error { return o.g.Close() }},
		{"cuGraphLaunch", "", func(o *things) error { return o.x.Launch(o.s) }},
		{"cuGraphExecDestroy", "", func(o *things) error { return o.x.Close() }},
		{"cuModuleLoadDataEx", "", func(o *things) error { return second(o.d.LoadModule([]byte("image"))) }},
		{"cuModuleUnload", "", func(o *things) error { return o.m.Close() }},
		{"cuModuleGetFunction", "", func(o *things) error { return second(o.m.Function("k")) }},
		{"cuFuncLoad", "", func(o *things) error { return o.k.Load() }},
		{"cuCtxGetLimit", "", func(o *things) error { return o.k.Load() }},
		{"cuCtxSetLimit", "", func(o *things) error { return o.deep.Load() }},
		{"cuFuncGetAttribute", "", func(o *things) error { return second(o.k.Registers()) }},
		{"cuFuncGetAttribute", "", func(o *things) error { return second(o.k.MaxThreads()) }},
		{"cuFuncSetAttribute", "", func(o *things) error { return o.k.SetMaxShared(1024) }},
		{"cuTensorMapEncodeTiled", "", func(o *things) error {
			return second(o.d.TensorMap(&Tensor{At: o.p, Rank: 1}))
		}},
		{"cuFuncGetParamInfo", "", func(o *things) error { _, _, err := o.k.Params(-1); return err }},
	} {
		covered[c.symbol] = true
		t.Run(c.symbol, func(t *testing.T) {
			o := make1(t)
			t.Setenv("FAKECUDA_FAIL", c.symbol+"=719")
			op := c.op
			if op == "" {
				op = c.symbol
			}
			wantError(t, c.call(o), op, ErrLaunchFailed)
		})
	}
	_, all := sysTable()
	for _, s := range all {
		if !covered[s.Name] {
			t.Errorf("no test of a failing %s", s.Name)
		}
	}
}

func fakeRefusals(t *testing.T) {
	o := make1(t)
	one := [3]int{1, 1, 1}
	wantError(t, o.s.Copy(o.p, o.h, -1), "cuMemcpyAsync", ErrInvalidValue)
	wantError(t, o.s.Fill(o.p, 8, 0, 1), "cuMemsetD32Async", ErrInvalidValue)
	wantError(t, o.s.Fill(o.p, 2, 0, -1), "cuMemsetD16Async", ErrInvalidValue)
	wantError(t, o.s.BeginCapture(3), "cuStreamBeginCapture", ErrInvalidValue)
	wantError(t, o.k.SetMaxShared(-1), "cuFuncSetAttribute", ErrInvalidValue)
	_, err := o.d.LoadModule(nil)
	wantError(t, err, "cuModuleLoadDataEx", ErrInvalidImage)
	_, err = o.m.Function("a\x00b")
	wantError(t, err, "cuModuleGetFunction", ErrInvalidValue)
	log := logOf(t)
	for _, bad := range [][3]int{{-1, 1, 1}, {1, math.MaxInt32 + 1, 1}, {1, 1, 1<<32 + 1}} { // the last is 1 in 32 bits
		wantError(t, o.s.Launch(o.k, bad, one, 0, nil), "cuLaunchKernel", ErrInvalidValue)
		wantError(t, o.s.Launch(o.k, one, bad, 0, nil), "cuLaunchKernel", ErrInvalidValue)
	}
	wantError(t, o.s.Launch(o.k, one, one, -1, nil), "cuLaunchKernel", ErrInvalidValue)
	wantError(t, o.s.Launch(o.k, one, one, 0, make([]uint64, 1025)), "cuLaunchKernel", ErrInvalidValue)
	// not loaded
	wantError(t, o.s.LaunchEarly(o.k, one, one, 0, make([]uint64, 1025)), "cuLaunchKernel", ErrInvalidValue)
	must(t, o.s.Copy(o.p, o.h, 0))
	must(t, o.s.Fill(o.p, 4, 0, 0))
	if lines := log(); len(lines) > 0 {
		t.Errorf("the driver was called:\n%s", strings.Join(lines, "\n"))
	}
	must(t, o.s.Launch(o.k, one, one, 0, make([]uint64, 1024)))
	// The driver's refusal is told with the numbers.
	e := wantError(t, o.s.Launch(o.k, one, [3]int{32, 32, 2}, 64, nil), "cuLaunchKernel", ErrInvalidValue)
	if e.Detail != "k: [1 1 1] blocks of [32 32 2] threads, 64 bytes of shared memory" {
		t.Errorf("detail %q", e.Detail)
	}
	must(t, o.close())
}
