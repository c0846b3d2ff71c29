package cuda

import (
	"fmt"
	"strings"
	"unsafe"
)

// Module is code on the device.
type Module struct {
	d *Device
	h unsafe.Pointer
}

// LoadModule loads an image: a cubin for this device, a fat binary, or PTX, which the driver
// compiles. The image is not used after the call. A failure holds the text of the driver's
// compiler. Source: cuda.h, cuModuleLoadDataEx.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, failed("cuModuleLoadDataEx", int(ErrInvalidImage), "the image is empty")
	}
	// PTX has to end with a zero byte. A cubin has to lie aligned, as a new slice does.
	h, log, status := sysModuleLoad(d, append(append(make([]byte, 0, len(image)+1), image...), 0))
	if status != 0 {
		return nil, failed("cuModuleLoadDataEx", status, strings.TrimSpace(log))
	}
	return &Module{d: d, h: h}, nil
}

// Function returns the kernel with that name, as the image has it; ErrNotFound if there is none.
// Source: cuda.h, cuModuleGetFunction.
func (m *Module) Function(name string) (*Function, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return nil, refused("cuModuleGetFunction", "%q", name)
	}
	h, status := sysModuleFunction(m, name)
	if status != 0 {
		return nil, failed("cuModuleGetFunction", status, name)
	}
	return &Function{d: m.d, h: h, name: name}, nil
}

// Close unloads the module and its functions. A second Close does nothing. Source: cuda.h,
// cuModuleUnload.
func (m *Module) Close() error {
	if m.h == nil {
		return nil
	}
	status := sysModuleUnload(m)
	m.h = nil
	return check("cuModuleUnload", status)
}

// Function is a kernel, valid until its module is closed.
type Function struct {
	d     *Device
	h     unsafe.Pointer
	name  string
	early bool // compiled for what LaunchEarly needs
}

// The attributes of a function. Source: cuda.h, CUfunction_attribute.
const (
	attrMaxThreads = 0
	attrLocal      = 3
	attrRegisters  = 4
	attrPTX        = 5
	attrMaxShared  = 8
)

// Name returns the name that Module.Function was asked for.
func (f *Function) Name() string { return f.name }

// Load brings the code to the device now, with as much local memory as its threads need. The first
// launch would do so, and wait until the device is idle. It is never idle while a stream waits for
// this process or for another device. A first launch cannot be captured, either. Load may wait for
// the device itself. It also finds out whether LaunchEarly can start f early.
//
// Source: cuda.h, cuFuncLoad (before CUDA 12.4 cuFuncGetAttribute of what only loaded code has),
// cuCtxSetLimit.
func (f *Function) Load() error {
	if sysHasFuncLoad() {
		if err := check("cuFuncLoad", sysFuncLoad(f)); err != nil {
			return err
		}
	}
	local, err := f.attribute(attrLocal)
	if err != nil {
		return err
	}
	if set, status := sysRaiseStack(f.d, local); status != 0 {
		op := "cuCtxGetLimit"
		if set {
			op = "cuCtxSetLimit"
		}
		return failed(op, status, fmt.Sprintf("%s: %d bytes of local memory for each thread", f.name, local))
	}
	if f.d.early { // the code may be PTX of a compiler that is older than the device
		arch, err := f.attribute(attrPTX)
		if err != nil {
			return err
		}
		f.early = arch >= 10*earlyCapability
	}
	return nil
}

// SetMaxShared allows launches with up to bytes of dynamic shared memory; without it 48 KiB is the
// limit. Source: cuda.h, cuFuncSetAttribute with CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
func (f *Function) SetMaxShared(bytes int) error {
	if bytes < 0 || bytes > 1<<30 {
		return refused("cuFuncSetAttribute", "%d bytes of shared memory", bytes)
	}
	if status := sysFuncSetAttribute(f, attrMaxShared, bytes); status != 0 {
		return failed("cuFuncSetAttribute", status, fmt.Sprintf("%s: %d bytes of shared memory", f.name, bytes))
	}
	return nil
}

// Registers returns the number of registers that each thread uses. Source: cuda.h,
// cuFuncGetAttribute.
func (f *Function) Registers() (int, error) { return f.attribute(attrRegisters) }

// MaxThreads returns how many threads a block can have with this kernel. Source: cuda.h,
// cuFuncGetAttribute.
func (f *Function) MaxThreads() (int, error) { return f.attribute(attrMaxThreads) }

// Params returns the sizes of the kernel's parameters in bytes. end is the end of the last one,
// from nvrtc.Image.ParamsEnds. With a negative end the driver is asked until it refuses, which
// compute-sanitizer reports as an error. known is false with drivers before CUDA 12.4, which do not
// say. Source: cuda.h, cuFuncGetParamInfo.
func (f *Function) Params(end int) (sizes []int, known bool, err error) {
	for at := 0; sysHasParamInfo(); {
		if at == end {
			return sizes, true, nil
		}
		offset, size, status := sysFuncParam(f, len(sizes))
		if status == int(ErrInvalidValue) && end < 0 {
			return sizes, true, nil
		}
		if err := check("cuFuncGetParamInfo", status); err != nil {
			return nil, false, err
		}
		sizes, at = append(sizes, size), offset+size
	}
	return nil, false, nil
}

func (f *Function) attribute(a int) (int, error) {
	v, status := sysFuncAttribute(f, a)
	return v, check("cuFuncGetAttribute", status)
}

func (f *Function) launchText(g *Shape) string {
	text := fmt.Sprintf("%s: %v blocks of %v threads, %d bytes of shared memory", f.name, g.Blocks, g.Threads, g.Shared)
	if g.Cluster[0] != 0 {
		text += fmt.Sprintf(", clusters of %v", g.Cluster)
	}
	return text
}
