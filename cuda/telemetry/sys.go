package telemetry

// The binding of NVML: prototypes, symbol table and trampolines.

/*
#include <stdlib.h>

typedef unsigned long long u64;
struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };

typedef int (*plain_fn)(void);
typedef const char *(*text_fn)(int);
typedef int (*find_fn)(const char *uuid, void **device);
typedef int (*number_fn)(void *device, unsigned *v);
typedef int (*kind_fn)(void *device, int kind, unsigned *v);
typedef int (*bits_fn)(void *device, u64 *v);
typedef int (*memory_fn)(void *device, struct memory *v);
typedef int (*memory_v2_fn)(void *device, struct memory_v2 *v);
typedef int (*utilization_fn)(void *device, struct utilization *v);

static int plain(void *f) { return ((plain_fn)f)(); }
static const char *text(void *f, int status) { return ((text_fn)f)(status); }
static int find(void *f, const char *uuid, void **device) { return ((find_fn)f)(uuid, device); }
static int number(void *f, void *device, unsigned *v) { return ((number_fn)f)(device, v); }
static int number_of(void *f, void *device, int kind, unsigned *v) { return ((kind_fn)f)(device, kind, v); }
static int bits(void *f, void *device, u64 *v) { return ((bits_fn)f)(device, v); }
static int busy(void *f, void *device, unsigned *percent) {
	struct utilization v = {0, 0};
	int status = ((utilization_fn)f)(device, &v);
	*percent = v.gpu;
	return status;
}
static int memory(void *f, void *device, u64 *used, u64 *total) {
	struct memory v = {0, 0, 0};
	int status = ((memory_fn)f)(device, &v);
	*used = v.used, *total = v.total;
	return status;
}
static int memory_v2(void *f, void *device, u64 *used, u64 *total) {
	struct memory_v2 v = {sizeof v | 2u << 24, 0, 0, 0, 0};
	int status = ((memory_v2_fn)f)(device, &v);
	*used = v.used, *total = v.total;
	return status;
}
*/
import "C"

import (
	"unsafe"

	"lockstep/internal/dl"
)

// lib holds the entry points of NVML. Those that a driver lacks are nil.
var lib struct {
	init, shutdown, text, find       unsafe.Pointer
	clock, mostClock, temperature    unsafe.Pointer
	power, powerLimit                unsafe.Pointer
	reasons, oldReasons, utilization unsafe.Pointer
	memory, memoryV2                 unsafe.Pointer
}

func open() error {
	_, err := dl.Open([]dl.Sym{
		{Name: "nvmlInit_v2", Slot: &lib.init},
		{Name: "nvmlShutdown", Slot: &lib.shutdown},
		{Name: "nvmlErrorString", Slot: &lib.text},
		{Name: "nvmlDeviceGetHandleByUUID", Slot: &lib.find},
		{Name: "nvmlDeviceGetClockInfo", Slot: &lib.clock, Optional: true},
		{Name: "nvmlDeviceGetMaxClockInfo", Slot: &lib.mostClock, Optional: true},
		{Name: "nvmlDeviceGetTemperature", Slot: &lib.temperature, Optional: true},
		{Name: "nvmlDeviceGetPowerUsage", Slot: &lib.power, Optional: true},
		{Name: "nvmlDeviceGetEnforcedPowerLimit", Slot: &lib.powerLimit, Optional: true},
		{Name: "nvmlDeviceGetCurrentClocksEventReasons", Slot: &lib.reasons, Optional: true},
		{Name: "nvmlDeviceGetCurrentClocksThrottleReasons", Slot: &lib.oldReasons, Optional: true},
		{Name: "nvmlDeviceGetUtilizationRates", Slot: &lib.utilization, Optional: true},
		{Name: "nvmlDeviceGetMemoryInfo", Slot: &lib.memory, Optional: true},
		{Name: "nvmlDeviceGetMemoryInfo_v2", Slot: &lib.memoryV2, Optional: true},
	}, "libnvidia-ml.so.1")
	return err
}

func sysInit() int     { return int(C.plain(lib.init)) }
func sysShutdown() int { return int(C.plain(lib.shutdown)) }

func sysText(status int) string { return C.GoString(C.text(lib.text, C.int(status))) }

func sysFind(uuid string) (device unsafe.Pointer, status int) {
	name := C.CString(uuid)
	defer C.free(unsafe.Pointer(name))
	status = int(C.find(lib.find, name, &device))
	return device, status
}

// sysNumber returns a call's number for a device; 0 if it fails, or is not there.
func sysNumber(f, device unsafe.Pointer) int {
	var v C.uint
	if f == nil || C.number(f, device, &v) != 0 {
		return 0
	}
	return int(v)
}

// sysNumberOf is sysNumber for calls that tell one of several.
func sysNumberOf(f, device unsafe.Pointer, kind int) int {
	var v C.uint
	if f == nil || C.number_of(f, device, C.int(kind), &v) != 0 {
		return 0
	}
	return int(v)
}

func sysBits(f, device unsafe.Pointer) uint64 {
	var v C.u64
	if f == nil || C.bits(f, device, &v) != 0 {
		return 0
	}
	return uint64(v)
}

func sysBusy(device unsafe.Pointer) int {
	var v C.uint
	if lib.utilization == nil || C.busy(lib.utilization, device, &v) != 0 {
		return 0
	}
	return int(v)
}

// sysMemory takes the second form of the call if there is one: in the first the driver's own share
// counts as used.
func sysMemory(device unsafe.Pointer) (used, total int) {
	var u, t C.u64
	if lib.memoryV2 != nil && C.memory_v2(lib.memoryV2, device, &u, &t) == 0 {
		return int(u), int(t)
	}
	if lib.memory != nil && C.memory(lib.memory, device, &u, &t) == 0 {
		return int(u), int(t)
	}
	return 0, 0
}
