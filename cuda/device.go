// Package cuda is the CUDA driver, found when the program runs: devices, memory, streams, events,
// graphs and modules. It links to no library and builds without CUDA. Load says whether there is a
// driver, from CUDA 12.0 on.
//
// Every call makes the device's primary context current on its thread. So goroutines may call from
// any thread, and several at a time; only closing an object must not overlap with its use.
// Addresses, of the device's memory and of pinned memory, are unsafe.Pointer. A call that only
// enqueues must not be given memory of Go.
//
// A failing status becomes a *ccall.Error that names the C function and holds the Result:
// errors.Is(err, cuda.ErrOutOfMemory). After work on the device has failed, any later call can be
// the one that reports it. Source: cuda.h of CUDA 13.0; each function documents the C function that
// it calls.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"lockstep/internal/dl"
)

// oldest is the first driver with every entry point of the table, as cuDriverGetVersion counts.
const oldest = 12000

// earlyDriver is the first driver with which a graph can capture an early launch.
const earlyDriver = 12030

// earlyCapability is the first with griddepcontrol, the major number.
const earlyCapability = 9

var (
	libFiles = []string{"libcuda.so.1"}
	load     = sync.OnceValue(func() error { return open(libFiles...) })
	loaded   atomic.Bool // the driver can be asked for names
	version  atomic.Int32
)

// Load finds the driver and initialises it, once for the process. Every function here that needs it
// calls it. The error says why it failed: there is no libcuda.so.1, the driver is older than CUDA
// 12.0, it lacks a symbol, or cuInit's status. Source: cuda.h, cuInit, cuDriverGetVersion.
func Load() error { return load() }

func open(files ...string) error {
	loaded.Store(false)
	version.Store(0)
	first, all := sysTable()
	if _, err := dl.Open(first, files...); err != nil {
		return fmt.Errorf("cuda: no usable NVIDIA driver: %w", err)
	}
	v, status := sysDriverVersion()
	if status != 0 {
		return check("cuDriverGetVersion", status)
	}
	if v < oldest {
		return fmt.Errorf("cuda: the NVIDIA driver supports CUDA %s, this program needs %s or later",
			versionString(v), versionString(oldest))
	}
	if _, err := dl.Open(all, files...); err != nil {
		return fmt.Errorf("cuda: the NVIDIA driver (CUDA %s) is incomplete: %w", versionString(v), err)
	}
	loaded.Store(true)
	if status := sysInit(); status != 0 {
		detail := ""
		if visible, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok && Result(status) == ErrNoDevice {
			detail = fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q", visible)
		}
		return failed("cuInit", status, detail)
	}
	version.Store(int32(v))
	return nil
}

func versionString(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// DriverVersion returns the CUDA version that the driver supports as 1000*major + 10*minor, such as
// 13000; 0 if Load fails. Source: cuda.h, cuDriverGetVersion.
func DriverVersion() int {
	if Load() != nil {
		return 0
	}
	return int(version.Load())
}

// Count returns the number of devices that this process sees. Source: cuda.h, cuDeviceGetCount.
func Count() (int, error) {
	if err := Load(); err != nil {
		return 0, err
	}
	n, status := sysDeviceCount()
	return n, check("cuDeviceGetCount", status)
}

// UUIDOf returns the UUID of a device as nvidia-smi prints it,
// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or "MIG-..." for a part of a GPU. It opens nothing.
// Source: cuda.h, cuDeviceGetUuid_v2.
func UUIDOf(index int) (string, error) {
	dev, err := deviceAt(index)
	if err != nil {
		return "", err
	}
	return uuidOf(dev)
}

func deviceAt(index int) (dev int, err error) {
	n, err := Count()
	if err != nil {
		return 0, err
	}
	if index < 0 || index >= n {
		return 0, failed("cuDeviceGet", int(ErrInvalidDevice), fmt.Sprintf("device %d of %d", index, n))
	}
	dev, status := sysDeviceGet(index)
	return dev, check("cuDeviceGet", status)
}

func uuidOf(dev int) (string, error) {
	id, physical, status := sysDeviceUUID(dev)
	if status != 0 {
		return "", check("cuDeviceGetUuid", status)
	}
	prefix := "GPU"
	if id != physical {
		prefix = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, id[:4], id[4:6], id[6:8], id[8:10], id[10:]), nil
}

// Device is an opened GPU: its primary context, which the CUDA runtime and libraries on top of it
// use too.
type Device struct {
	ctx             unsafe.Pointer
	dev, index      int
	name, uuid, pci string
	major, minor    int
	multiprocessors int
	shared          int
	memory          int
	least, greatest int
	early           bool // it knows Stream.LaunchEarly
	managed         ledger
}

// The attributes of a device that Open asks for. Source: cuda.h, CUdevice_attribute.
const (
	attrMultiprocessors = 16
	attrComputeMode     = 20
	attrMajor           = 75
	attrMinor           = 76
	attrSharedOptIn     = 97
)

// Open opens device index of those that this process sees. Devices opened twice share one context,
// and each has to be closed. A device that another process has for itself alone gives
// ErrDeviceUnavailable, and the error says so. Source: cuda.h, cuDevicePrimaryCtxRetain.
func Open(index int) (*Device, error) {
	dev, err := deviceAt(index)
	if err != nil {
		return nil, err
	}
	d := &Device{dev: dev, index: index}
	if err := d.describe(); err != nil {
		return nil, err
	}
	ctx, status := sysRetain(dev)
	if status != 0 {
		return nil, failed("cuDevicePrimaryCtxRetain", status,
			fmt.Sprintf("GPU %d, %s, %s%s", index, d.name, d.uuid, d.modeText()))
	}
	d.ctx = ctx
	d.early = d.major >= earlyCapability && int(version.Load()) >= earlyDriver && sysHasLaunchEx()
	if d.least, d.greatest, status = sysPriorities(ctx); status != 0 {
		return nil, errors.Join(check("cuCtxGetStreamPriorityRange", status), d.Close())
	}
	return d, nil
}

func (d *Device) describe() (err error) {
	var status int
	if d.name, status = sysDeviceName(d.dev); status != 0 {
		return check("cuDeviceGetName", status)
	}
	if d.uuid, err = uuidOf(d.dev); err != nil {
		return err
	}
	if d.pci, status = sysDevicePCI(d.dev); status != 0 {
		return check("cuDeviceGetPCIBusId", status)
	}
	d.pci = strings.ToLower(d.pci)
	if d.memory, status = sysDeviceMemory(d.dev); status != 0 {
		return check("cuDeviceTotalMem", status)
	}
	for _, a := range []struct {
		value     *int
		attribute int
	}{{&d.multiprocessors, attrMultiprocessors}, {&d.major, attrMajor}, {&d.minor, attrMinor},
		{&d.shared, attrSharedOptIn}} {
		if *a.value, status = sysDeviceAttribute(d.dev, a.attribute); status != 0 {
			return check("cuDeviceGetAttribute", status)
		}
	}
	return nil
}

// modeText explains a refusal by the device's compute mode, if that can be the reason.
func (d *Device) modeText() string {
	switch mode, status := sysDeviceAttribute(d.dev, attrComputeMode); {
	case status != 0:
		return ""
	case mode == 2:
		return ": its compute mode, Prohibited, lets no process use it"
	case mode == 3:
		return ": its compute mode is Exclusive_Process and another process has it; nvidia-smi shows which"
	default:
		return ""
	}
}

// Close gives the device back, after all that was made from it has been closed or freed. A second
// Close does nothing. Source: cuda.h, cuDevicePrimaryCtxRelease.
func (d *Device) Close() error {
	if d.ctx == nil {
		return nil
	}
	ctx := d.ctx
	d.ctx = nil
	return check("cuDevicePrimaryCtxRelease", sysRelease(ctx, d.dev))
}

// Index returns the number of the device among those that this process sees.
func (d *Device) Index() int { return d.index }

// Name returns the product name, such as "NVIDIA H200".
func (d *Device) Name() string { return d.name }

// UUID returns the result of UUIDOf.
func (d *Device) UUID() string { return d.uuid }

// Capability returns the compute capability, 9 and 0 for an H200.
func (d *Device) Capability() (major, minor int) { return d.major, d.minor }

// Multiprocessors returns the number of multiprocessors.
func (d *Device) Multiprocessors() int { return d.multiprocessors }

// SharedMemory returns the most shared memory of a block, in bytes: the limit of
// Function.SetMaxShared, less what the kernel declares itself.
func (d *Device) SharedMemory() int { return d.shared }

// Memory returns the size of the device's memory in bytes.
func (d *Device) Memory() int { return d.memory }

// PCI returns domain, bus, device and function as Linux writes them under /sys/bus/pci, such as
// "0000:3b:00.0".
func (d *Device) PCI() string { return d.pci }

// Priorities returns the range of stream priorities; a lower number is a greater priority.
// Source: cuda.h, cuCtxGetStreamPriorityRange.
func (d *Device) Priorities() (least, greatest int) { return d.least, d.greatest }

// MemInfo returns how much of the device's memory is free, in bytes, and how much there is. Source:
// cuda.h, cuMemGetInfo.
func (d *Device) MemInfo() (free, total int, err error) {
	free, total, status := sysMemInfo(d.ctx)
	return free, total, check("cuMemGetInfo", status)
}

// Synchronize blocks until the device has finished all work of this process.
// Source: cuda.h, cuCtxSynchronize.
func (d *Device) Synchronize() error {
	return check("cuCtxSynchronize", sysContextSynchronize(d.ctx))
}

// Bind lets C code of other packages make the device current on its thread, before it calls a
// library that works on the current device. Enter is a C function, int Enter(void *context): call
// it with Context. It returns a CUresult.
type Bind struct{ Enter, Context unsafe.Pointer }

// Bind returns the device's Bind, valid until Close.
func (d *Device) Bind() Bind { return Bind{sysBindAddress(), d.ctx} }
