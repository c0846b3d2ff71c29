package doctor

// Questions to the driver that package cuda does not ask: a device's name without opening it, and
// whether two devices reach each other's memory.

/*
typedef int (*name_fn)(char *, int, int);
typedef int (*peer_fn)(int *, int, int);
static int call_name(void *f, char *out, int n, int device) { return ((name_fn)f)(out, n, device); }
static int call_peer(void *f, int *out, int device, int peer) { return ((peer_fn)f)(out, device, peer); }
*/
import "C"

import (
	"unsafe"

	"lockstep/internal/dl"
)

var driver struct{ name, peer unsafe.Pointer }

// openDriver binds the functions below. Package cuda has loaded and initialised the driver.
func openDriver() error {
	_, err := dl.Open([]dl.Sym{
		{Name: "cuDeviceGetName", Slot: &driver.name},
		{Name: "cuDeviceCanAccessPeer", Slot: &driver.peer, Optional: true},
	}, "libcuda.so.1")
	return err
}

// deviceName returns "" if the driver refuses. A CUdevice is the device's number. Source: cuda.h,
// cuDeviceGetName.
func deviceName(device int) string {
	var buf [256]C.char
	if C.call_name(driver.name, &buf[0], C.int(len(buf)), C.int(device)) != 0 {
		return ""
	}
	return C.GoString(&buf[0])
}

// canAccessPeer reports whether device reaches peer's memory; known is false if the driver does not
// tell. Source: cuda.h, cuDeviceCanAccessPeer.
func canAccessPeer(device, peer int) (can, known bool) {
	if driver.peer == nil {
		return false, false
	}
	var v C.int
	status := C.call_peer(driver.peer, &v, C.int(device), C.int(peer))
	return v != 0, status == 0
}
