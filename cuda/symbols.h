// The entry points of the CUDA driver, in a table that is filled when the program runs. sys.h
// includes it.

#include <stddef.h>
#include <stdint.h>

// Handles are pointers to the driver's structures, device addresses 64-bit integers, enumerations
// int.
typedef uint64_t device_ptr;
typedef struct { unsigned char bytes[16]; } uuid;
typedef struct { char bytes[64]; } ipc_handle;
typedef struct { int type, id; } mem_location;
typedef struct { unsigned char from_port, to_port, type, reserved[5]; } edge_data;
typedef struct { int id, pad; union { int on; unsigned dim[3]; uint64_t words[8]; } value; } launch_attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; const launch_attribute *attributes; unsigned n;
    } launch_config;

static struct {
    int (*Init)(unsigned);
    int (*DriverGetVersion)(int *);
    int (*GetErrorName)(int, const char **);
    int (*GetErrorString)(int, const char **);
    int (*DeviceGetCount)(int *);
    int (*DeviceGet)(int *, int);
    int (*DeviceGetName)(char *, int, int);
    int (*DeviceGetUuid)(uuid *, int);
    int (*DeviceGetUuid_v2)(uuid *, int);
    int (*DeviceGetAttribute)(int *, int, int);
    int (*DeviceTotalMem)(size_t *, int);
    int (*DeviceGetPCIBusId)(char *, int, int);
    int (*DevicePrimaryCtxRetain)(void **, int);
    int (*DevicePrimaryCtxRelease)(int);
    int (*CtxGetCurrent)(void **);
    int (*CtxSetCurrent)(void *);
    int (*CtxSynchronize)(void);
    int (*CtxGetStreamPriorityRange)(int *, int *);
    int (*CtxEnablePeerAccess)(void *, unsigned);
    int (*CtxGetLimit)(size_t *, int);
    int (*CtxSetLimit)(int, size_t);
    int (*MemGetInfo)(size_t *, size_t *);
    int (*MemAlloc)(device_ptr *, size_t);
    int (*MemFree)(device_ptr);
    int (*MemHostAlloc)(void **, size_t, unsigned);
    int (*MemFreeHost)(void *);
    int (*MemAllocManaged)(device_ptr *, size_t, unsigned);
    int (*MemPrefetchAsync)(device_ptr, size_t, mem_location, unsigned, void *);
    int (*MemAdvise)(device_ptr, size_t, int, mem_location);
    int (*MemHostRegister)(void *, size_t, unsigned);
    int (*MemHostUnregister)(void *);
    int (*MemGetAddressRange)(device_ptr *, size_t *, device_ptr);
    int (*DeviceCanAccessPeer)(int *, int, int);
    int (*DeviceGetP2PAttribute)(int *, int, int, int);
    int (*IpcGetMemHandle)(ipc_handle *, device_ptr);
    int (*IpcOpenMemHandle)(device_ptr *, ipc_handle, unsigned);
    int (*IpcCloseMemHandle)(device_ptr);
    int (*MemcpyAsync)(device_ptr, device_ptr, size_t, void *);
    int (*MemsetD8Async)(device_ptr, unsigned char, size_t, void *);
    int (*MemsetD16Async)(device_ptr, unsigned short, size_t, void *);
    int (*MemsetD32Async)(device_ptr, unsigned, size_t, void *);
    int (*StreamCreateWithPriority)(void **, unsigned, int);
    int (*StreamDestroy)(void *);
    int (*StreamQuery)(void *);
    int (*StreamSynchronize)(void *);
    int (*StreamWaitEvent)(void *, void *, unsigned);
    int (*StreamWaitValue32)(void *, device_ptr, uint32_t, unsigned);
    int (*StreamWriteValue32)(void *, device_ptr, uint32_t, unsigned);
    int (*StreamBeginCapture)(void *, int);
    int (*StreamEndCapture)(void *, void **);
    int (*StreamIsCapturing)(void *, int *);
    int (*StreamGetCaptureInfo)(void *, int *, uint64_t *, void **, void *const **, size_t *);
    int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
        void **, void **);
    int (*LaunchKernelEx)(const launch_config *, void *, void **, void **);
    int (*LaunchHostFunc)(void *, void (*)(void *), void *);
    int (*EventCreate)(void **, unsigned);
    int (*EventDestroy)(void *);
    int (*EventRecord)(void *, void *);
    int (*EventQuery)(void *);
    int (*EventSynchronize)(void *);
    int (*EventElapsedTime)(float *, void *, void *);
    int (*EventElapsedTime_v2)(float *, void *, void *);
    int (*GraphInstantiateWithFlags)(void **, void *, unsigned long long);
    int (*GraphGetNodes)(void *, void **, size_t *);
    int (*GraphGetRootNodes)(void *, void **, size_t *);
    int (*GraphNodeGetDependentNodes)(void *, void **, edge_data *, size_t *);
    int (*GraphAddEventRecordNode)(void **, void *, void *const *, size_t, void *);
    int (*GraphAddDependencies)(void *, void *const *, void *const *, const edge_data *, size_t);
    int (*GraphDestroy)(void *);
    int (*GraphLaunch)(void *, void *);
    int (*GraphExecDestroy)(void *);
    int (*ModuleLoadDataEx)(void **, const void *, unsigned, int *, void **);
    int (*ModuleUnload)(void *);
    int (*ModuleGetFunction)(void **, void *, const char *);
    int (*FuncLoad)(void *);
    int (*FuncGetAttribute)(int *, int, void *);
    int (*FuncSetAttribute)(void *, int, int);
    int (*FuncGetParamInfo)(void *, size_t, size_t *, size_t *);
    int (*TensorMapEncodeTiled)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
        const uint32_t *, int, int, int, int);
} cu;

// The symbols as drivers of CUDA 12 and 13 have them. The header's cuMemAlloc is cuMemAlloc_v2 in
// the library.
struct row { const char *symbol; void **slot; int optional; };
static struct row row_at(int i) {
#define NEED(field, symbol) {symbol, (void **)&cu.field, 0}
#define MAY(field, symbol) {symbol, (void **)&cu.field, 1}
    static const struct row rows[] = {
        // The first two say whether the driver is new enough for the others.
        NEED(Init, "cuInit"),
        NEED(DriverGetVersion, "cuDriverGetVersion"),
        MAY(GetErrorName, "cuGetErrorName"),
        MAY(GetErrorString, "cuGetErrorString"),
        NEED(DeviceGetCount, "cuDeviceGetCount"),
        NEED(DeviceGet, "cuDeviceGet"),
        NEED(DeviceGetName, "cuDeviceGetName"),
        MAY(DeviceGetUuid, "cuDeviceGetUuid"),
        NEED(DeviceGetUuid_v2, "cuDeviceGetUuid_v2"),
        NEED(DeviceGetAttribute, "cuDeviceGetAttribute"),
        NEED(DeviceTotalMem, "cuDeviceTotalMem_v2"),
        NEED(DeviceGetPCIBusId, "cuDeviceGetPCIBusId"),
        NEED(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"),
        NEED(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2"),
        NEED(CtxGetCurrent, "cuCtxGetCurrent"),
        NEED(CtxSetCurrent, "cuCtxSetCurrent"),
        NEED(CtxSynchronize, "cuCtxSynchronize"),
        NEED(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange"),
        NEED(CtxEnablePeerAccess, "cuCtxEnablePeerAccess"),
        NEED(CtxGetLimit, "cuCtxGetLimit"),
        NEED(CtxSetLimit, "cuCtxSetLimit"),
        NEED(MemGetInfo, "cuMemGetInfo_v2"),
        NEED(MemAlloc, "cuMemAlloc_v2"),
        NEED(MemFree, "cuMemFree_v2"),
        NEED(MemHostAlloc, "cuMemHostAlloc"),
        NEED(MemFreeHost, "cuMemFreeHost"),
        NEED(MemAllocManaged, "cuMemAllocManaged"),
        MAY(MemPrefetchAsync, "cuMemPrefetchAsync_v2"), // CUDA 12.2
        MAY(MemAdvise, "cuMemAdvise_v2"),               // CUDA 12.2
        NEED(MemHostRegister, "cuMemHostRegister_v2"),
        NEED(MemHostUnregister, "cuMemHostUnregister"),
        NEED(MemGetAddressRange, "cuMemGetAddressRange_v2"),
        NEED(DeviceCanAccessPeer, "cuDeviceCanAccessPeer"),
        NEED(DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute"),
        NEED(IpcGetMemHandle, "cuIpcGetMemHandle"),
        NEED(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2"),
        NEED(IpcCloseMemHandle, "cuIpcCloseMemHandle"),
        NEED(MemcpyAsync, "cuMemcpyAsync"),
        NEED(MemsetD8Async, "cuMemsetD8Async"),
        NEED(MemsetD16Async, "cuMemsetD16Async"),
        NEED(MemsetD32Async, "cuMemsetD32Async"),
        NEED(StreamCreateWithPriority, "cuStreamCreateWithPriority"),
        NEED(StreamDestroy, "cuStreamDestroy_v2"),
        NEED(StreamQuery, "cuStreamQuery"),
        NEED(StreamSynchronize, "cuStreamSynchronize"),
        NEED(StreamWaitEvent, "cuStreamWaitEvent"),
        NEED(StreamWaitValue32, "cuStreamWaitValue32_v2"),
        NEED(StreamWriteValue32, "cuStreamWriteValue32_v2"),
        NEED(StreamBeginCapture, "cuStreamBeginCapture_v2"),
        NEED(StreamEndCapture, "cuStreamEndCapture"),
        NEED(StreamIsCapturing, "cuStreamIsCapturing"),
        MAY(StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2"),
        NEED(LaunchKernel, "cuLaunchKernel"),
        MAY(LaunchKernelEx, "cuLaunchKernelEx"),
        NEED(LaunchHostFunc, "cuLaunchHostFunc"),
        NEED(EventCreate, "cuEventCreate"),
        NEED(EventDestroy, "cuEventDestroy_v2"),
        NEED(EventRecord, "cuEventRecord"),
        NEED(EventQuery, "cuEventQuery"),
        NEED(EventSynchronize, "cuEventSynchronize"),
        NEED(EventElapsedTime, "cuEventElapsedTime"),
        MAY(EventElapsedTime_v2, "cuEventElapsedTime_v2"), // CUDA 12.8
        NEED(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags"),
        NEED(GraphGetNodes, "cuGraphGetNodes"),
        NEED(GraphGetRootNodes, "cuGraphGetRootNodes"),
        MAY(GraphNodeGetDependentNodes, "cuGraphNodeGetDependentNodes_v2"), // CUDA 12.3
        NEED(GraphAddEventRecordNode, "cuGraphAddEventRecordNode"),
        MAY(GraphAddDependencies, "cuGraphAddDependencies_v2"),
        NEED(GraphDestroy, "cuGraphDestroy"),
        NEED(GraphLaunch, "cuGraphLaunch"),
        NEED(GraphExecDestroy, "cuGraphExecDestroy"),
        NEED(ModuleLoadDataEx, "cuModuleLoadDataEx"),
        NEED(ModuleUnload, "cuModuleUnload"),
        NEED(ModuleGetFunction, "cuModuleGetFunction"),
        MAY(FuncLoad, "cuFuncLoad"), // CUDA 12.4
        NEED(FuncGetAttribute, "cuFuncGetAttribute"),
        NEED(FuncSetAttribute, "cuFuncSetAttribute"),
        MAY(FuncGetParamInfo, "cuFuncGetParamInfo"), // CUDA 12.4
        MAY(TensorMapEncodeTiled, "cuTensorMapEncodeTiled"), // CUDA 12.0
    };
#undef NEED
#undef MAY
    return i < (int)(sizeof rows / sizeof rows[0]) ? rows[i] : (struct row){NULL, NULL, 0};
}
