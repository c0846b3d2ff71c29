package cuda

import (
	"fmt"
	"unsafe"
)

// IPCHandle names device memory to the other processes of the same node. It is plain bytes, and can
// be sent as such.
type IPCHandle struct {
	Allocation [64]byte // CUipcMemHandle
	Offset     int      // of the memory in its allocation, in bytes
}

// IPCHandle returns the handle of memory from Malloc, or of a place in it, for other processes to
// open. It stays valid until the memory is freed. Source: cuda.h, cuMemGetAddressRange,
// cuIpcGetMemHandle.
func (d *Device) IPCHandle(p unsafe.Pointer) (IPCHandle, error) {
	base, _, status := sysAddressRange(d, p)
	if status != 0 {
		return IPCHandle{}, check("cuMemGetAddressRange", status)
	}
	h, status := sysIPCGet(d, p)
	if status != 0 {
		return IPCHandle{}, failed("cuIpcGetMemHandle", status, "only memory of plain allocations can be shared")
	}
	return IPCHandle{h, int(uintptr(p)) - base}, nil
}

// Foreign is device memory of another process, mapped into this one.
type Foreign struct {
	d    *Device
	base unsafe.Pointer
	at   unsafe.Pointer
}

// OpenIPC maps memory of another process of the node by its handle. A handle of one's own process
// is refused. Copies and kernels of d reach it like memory of d, over the link between the devices.
// The owner must not free it before Close.
//
// If the device of the memory is not visible to this process the result is ErrInvalidDevice or
// ErrInvalidContext; without peer access between the two devices it is ErrPeerAccessUnsupported.
// Source: cuda.h, cuIpcOpenMemHandle with CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.
func (d *Device) OpenIPC(h IPCHandle) (*Foreign, error) {
	p, status := sysIPCOpen(d, &h.Allocation)
	if status != 0 {
		return nil, check("cuIpcOpenMemHandle", status)
	}
	return &Foreign{d: d, base: p, at: unsafe.Add(p, h.Offset)}, nil
}

// Addr returns the address of the memory in this process, valid until Close.
func (f *Foreign) Addr() unsafe.Pointer { return f.at }

// Close unmaps the memory. Work of this process on it must have finished. A second Close does
// nothing. Source: cuda.h, cuIpcCloseMemHandle.
func (f *Foreign) Close() error {
	if f.base == nil {
		return nil
	}
	status := sysIPCClose(f.d, f.base)
	f.base, f.at = nil, nil
	return check("cuIpcCloseMemHandle", status)
}

// CanAccess reports whether copies and kernels of d can reach the memory of the device with the
// UUID, and if not, why. A device always reaches its own. Source: cuda.h, cuDeviceCanAccessPeer.
func (d *Device) CanAccess(uuid string) (ok bool, why string, err error) {
	return d.to(uuid, "cuDeviceCanAccessPeer", sysCanAccessPeer, "no peer access", "r")
}

// Reach lets copies and kernels of d reach all memory of another device of this process, memory of
// later calls too. It holds until d or the other is closed. They use the addresses that the memory
// has there. context is from that device's Bind. OpenIPC is for other processes. A second Reach
// does nothing. Source: cuda.h, cuCtxEnablePeerAccess.
func (d *Device) Reach(context unsafe.Pointer) error {
	if context == d.ctx {
		return nil
	}
	return check("cuCtxEnablePeerAccess", sysEnablePeer(d, context))
}

// NativeAtomics reports whether the link between d and the device with the UUID carries every
// atomic operation of d on that device's memory. If not, it says why. NVLink does, and PCIe does
// not. d's own memory has them all. Source: cuda.h, cuDeviceGetP2PAttribute,
// CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED.
func (d *Device) NativeAtomics(uuid string) (ok bool, why string, err error) {
	return d.to(uuid, "cuDeviceGetP2PAttribute", sysNativeAtomics, "no native atomic operations", "a")
}

// to asks what d can do with the device of the UUID. lacks names the missing ability; nvidia-smi
// topo -p2p has a table of these.
func (d *Device) to(
	uuid, op string, ask func(dev, peer int) (can, status int), lacks, table string,
) (ok bool, why string, err error) {
	if uuid == d.uuid {
		return true, "", nil
	}
	n, err := Count()
	if err != nil {
		return false, "", err
	}
	for i := range n {
		dev, err := deviceAt(i)
		if err != nil {
			return false, "", err
		}
		id, err := uuidOf(dev)
		if err != nil {
			return false, "", err
		}
		if id != uuid {
			continue
		}
		can, status := ask(d.dev, dev)
		if status != 0 {
			return false, "", check(op, status)
		}
		if can == 0 {
			return false, fmt.Sprintf("GPU %d has %s to GPU %d (see nvidia-smi topo -p2p %s)", d.index,
				lacks, i, table), nil
		}
		return true, "", nil
	}
	return false, fmt.Sprintf("%s is not visible to this process: let each rank see all GPUs of its node", uuid), nil
}
