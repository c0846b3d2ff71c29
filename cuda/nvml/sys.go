package nvml

// The binding of NVML: prototypes, symbol table and trampolines.

/*
#include <stdlib.h>

typedef unsigned long long u64;
struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct process { unsigned pid; u64 bytes; unsigned instance, compute; };
struct first_process { unsigned pid; u64 bytes; }; // before driver 470

typedef int (*plain_fn)(void);
typedef const char *(*text_fn)(int);
typedef int (*find_fn)(const char *uuid, void **device);
typedef int (*number_fn)(void *device, unsigned *v);
typedef int (*kind_fn)(void *device, int kind, unsigned *v);
typedef int (*bits_fn)(void *device, u64 *v);
typedef int (*memory_fn)(void *device, struct memory *v);
typedef int (*memory_v2_fn)(void *device, struct memory_v2 *v);
typedef int (*utilization_fn)(void *device, struct utilization *v);
typedef int (*driver_fn)(char *v, unsigned n);
typedef int (*cuda_fn)(int *v);
typedef int (*name_fn)(void *device, char *v, unsigned n);
typedef int (*pci_fn)(void *device, struct pci *v);
typedef int (*nodes_fn)(void *device, unsigned n, unsigned long *set, int scope);
typedef int (*cpus_fn)(void *device, unsigned n, unsigned long *set);
typedef int (*processes_fn)(void *device, unsigned *n, void *v);

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
static int driver(void *f, char *v, unsigned n) { return ((driver_fn)f)(v, n); }
static int cuda(void *f, int *v) { return ((cuda_fn)f)(v); }
static int name(void *f, void *device, char *v, unsigned n) { return ((name_fn)f)(device, v, n); }
static int pci(void *f, void *device, struct pci *v) { return ((pci_fn)f)(device, v); }
static int nodes(void *f, void *device, unsigned n, unsigned long *set) {
	return ((nodes_fn)f)(device, n, set, 0); // NVML_AFFINITY_SCOPE_NODE
}
static int cpus(void *f, void *device, unsigned n, unsigned long *set) { return ((cpus_fn)f)(device, n, set); }

// processes asks in either form. first processes are smaller, and are made larger from the last on.
static int processes(void *f, int first, void *device, unsigned *n, struct process *v) {
	unsigned room = *n;
	int status = ((processes_fn)f)(device, n, v);
	for (unsigned i = *n; first && status == 0 && *n <= room && i-- > 0;) {
		struct first_process p = ((struct first_process *)v)[i];
		v[i] = (struct process){p.pid, p.bytes, ~0u, ~0u};
	}
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
	driver, cuda, name, computeMode  unsafe.Pointer
	pci, nodes, cpus, link           unsafe.Pointer
	processes, firstProcesses        unsafe.Pointer
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
		{Name: "nvmlSystemGetDriverVersion", Slot: &lib.driver, Optional: true},
		{Name: "nvmlSystemGetCudaDriverVersion", Slot: &lib.cuda, Optional: true},
		{Name: "nvmlDeviceGetName", Slot: &lib.name, Optional: true},
		{Name: "nvmlDeviceGetComputeMode", Slot: &lib.computeMode, Optional: true},
		{Name: "nvmlDeviceGetPciInfo_v3", Slot: &lib.pci, Optional: true},
		{Name: "nvmlDeviceGetMemoryAffinity", Slot: &lib.nodes, Optional: true},
		{Name: "nvmlDeviceGetCpuAffinity", Slot: &lib.cpus, Optional: true},
		{Name: "nvmlDeviceGetNvLinkState", Slot: &lib.link, Optional: true},
		{Name: "nvmlDeviceGetComputeRunningProcesses_v3", Slot: &lib.processes, Optional: true},
		{Name: "nvmlDeviceGetComputeRunningProcesses", Slot: &lib.firstProcesses, Optional: true},
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

// sysNumber returns a call's number for a device.
func sysNumber(f, device unsafe.Pointer) (number, status int) {
	var v C.uint
	if f == nil {
		return 0, notFound
	}
	if status = int(C.number(f, device, &v)); status != 0 {
		return 0, status
	}
	return int(v), 0
}

// sysNumberOf is sysNumber for calls that tell one of several.
func sysNumberOf(f, device unsafe.Pointer, kind int) (number, status int) {
	var v C.uint
	if f == nil {
		return 0, notFound
	}
	if status = int(C.number_of(f, device, C.int(kind), &v)); status != 0 {
		return 0, status
	}
	return int(v), 0
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
func sysMemory(device unsafe.Pointer) (used, total, status int) {
	var u, t C.u64
	if lib.memoryV2 != nil && C.memory_v2(lib.memoryV2, device, &u, &t) == 0 {
		return int(u), int(t), 0
	}
	if lib.memory == nil {
		return 0, 0, notFound
	}
	if status = int(C.memory(lib.memory, device, &u, &t)); status != 0 {
		return 0, 0, status
	}
	return int(u), int(t), 0
}

const mostText = 96 // bytes of a version or a name, with the 0 at the end

func sysDriver() (version string, status int) {
	var text [mostText]C.char
	if lib.driver == nil {
		return "", notFound
	}
	status = int(C.driver(lib.driver, &text[0], mostText))
	return C.GoString(&text[0]), status
}

func sysCUDA() (version, status int) {
	var v C.int
	if lib.cuda == nil {
		return 0, notFound
	}
	status = int(C.cuda(lib.cuda, &v))
	return int(v), status
}

func sysName(device unsafe.Pointer) (name string, status int) {
	var text [mostText]C.char
	if lib.name == nil {
		return "", notFound
	}
	status = int(C.name(lib.name, device, &text[0], mostText))
	return C.GoString(&text[0]), status
}

func sysPCI(device unsafe.Pointer) (domain, bus, slot, status int) {
	var v C.struct_pci
	if lib.pci == nil {
		return 0, 0, 0, notFound
	}
	status = int(C.pci(lib.pci, device, &v))
	return int(v.domain), int(v.bus), int(v.device), status
}

// sysNodes returns bits for the first n NUMA nodes, as words.
func sysNodes(device unsafe.Pointer, n int) (words []uint, status int) {
	if lib.nodes == nil {
		return nil, notFound
	}
	words = make([]uint, (n+wordBits-1)/wordBits)
	status = int(C.nodes(lib.nodes, device, C.uint(len(words)), (*C.ulong)(unsafe.Pointer(&words[0]))))
	return words, status
}

// sysCPUs returns bits for the first n processors, as words.
func sysCPUs(device unsafe.Pointer, n int) (words []uint, status int) {
	if lib.cpus == nil {
		return nil, notFound
	}
	words = make([]uint, (n+wordBits-1)/wordBits)
	status = int(C.cpus(lib.cpus, device, C.uint(len(words)), (*C.ulong)(unsafe.Pointer(&words[0]))))
	return words, status
}

const wordBits = C.sizeof_ulong * 8

func sysProcesses(device unsafe.Pointer) ([]Process, int) {
	f, first := lib.processes, C.int(0)
	if f == nil {
		f, first = lib.firstProcesses, 1
	}
	if f == nil {
		return nil, notFound
	}
	for room := 16; ; room *= 2 { // more may begin meanwhile
		all, n := make([]C.struct_process, room), C.uint(room)
		status := int(C.processes(f, first, device, &n, &all[0]))
		if status == insufficientSize {
			continue
		}
		if status != 0 {
			return nil, status
		}
		var told []Process
		for _, p := range all[:n] {
			told = append(told, Process{PID: int(p.pid), Bytes: processBytes(uint64(p.bytes))})
		}
		return told, 0
	}
}
