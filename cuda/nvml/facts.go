// Package nvml asks NVML about a GPU what CUDA does not tell. Facts are who else uses it, its place
// in the machine and its links. A Meter reads its state while it works: memory, clocks, power,
// heat, and why its clock is low.
//
// NVML (libnvidia-ml.so.1, part of the driver) is looked for when Facts or Open is called; a
// program that imports this package builds and runs without it.
package nvml

import (
	"fmt"
	"math/bits"
	"runtime"
	"unsafe"
)

// Info holds the facts of one GPU. A fact that the device or the driver does not tell has the named
// value.
type Info struct {
	Driver      string    // version of the driver: "580.159.03"
	CUDA        int       // highest CUDA version the driver serves: 13000
	Name        string    // "NVIDIA H200"; "" if not told
	MemoryUsed  int       // bytes, by all processes, without the driver's own if it tells that apart
	MemoryTotal int       // bytes
	ComputeMode string    // "Default", "Exclusive_Process" or "Prohibited", as nvidia-smi has them; "" if not told
	PCI         string    // "0000:1b:00.0", as in /sys/bus/pci/devices
	NUMA        int       // node whose memory is nearest, -1 if not told
	CPUs        []int     // processors nearest to the device, ascending; nil if not told
	NVLinks     int       // links that are up; 0 if it has none
	Processes   []Process // that have a CUDA context on it, in NVML's order; a container sees only its own, or none
	Unknown     []string  // facts that were not told, and why: "NUMA node: Not Supported"
}

// Process is a process that uses a GPU.
type Process struct {
	PID   int
	Bytes int // of device memory, -1 if not told
}

// Facts asks NVML about the device with this UUID ("GPU-xxxxxxxx-..."; cuda.UUIDOf gives it). It
// fails as Open does. Info.Unknown lists other facts that cannot be learnt. It blocks for as long
// as the driver takes, which is a second or so if nothing else keeps the driver awake. Source:
// nvml.h, nvmlDeviceGetHandleByUUID and the calls named after each fact.
func Facts(uuid string) (info Info, err error) {
	m, err := Open(uuid)
	if err != nil {
		return Info{}, err
	}
	q := asker{device: m.device, info: Info{NUMA: -1}}
	q.ask()
	return q.info, m.Close()
}

// asker gathers the facts that are told, and those that are not.
type asker struct {
	device unsafe.Pointer
	info   Info
}

// told reports whether a fact was told, and notes it if not.
func (q *asker) told(what string, status int) bool {
	if status != 0 {
		q.info.Unknown = append(q.info.Unknown, what+": "+Result(status).Error())
	}
	return status == 0
}

func (q *asker) ask() {
	i, d := &q.info, q.device
	if v, status := sysDriver(); q.told("driver version", status) {
		i.Driver = v
	}
	if v, status := sysCUDA(); q.told("CUDA version", status) {
		i.CUDA = v
	}
	if v, status := sysName(d); q.told("name", status) {
		i.Name = v
	}
	if used, total, status := sysMemory(d); q.told("memory", status) {
		i.MemoryUsed, i.MemoryTotal = used, total
	}
	if v, status := sysNumber(lib.computeMode, d); q.told("compute mode", status) {
		i.ComputeMode = computeMode(v)
	}
	if domain, bus, device, status := sysPCI(d); q.told("PCI bus id", status) {
		i.PCI = fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
	}
	if v, status := sysNodes(d, maxNodes); q.told("NUMA node", status) {
		if nodes := set(v); len(nodes) > 0 {
			i.NUMA = nodes[0]
		}
	}
	if v, status := sysCPUs(d, max(maxCPUs, runtime.NumCPU())); q.told("CPU affinity", status) {
		i.CPUs = set(v)
	}
	i.NVLinks = q.links()
	if v, status := sysProcesses(d); q.told("processes", status) {
		i.Processes = v
	}
}

const (
	maxNodes = 1024
	maxCPUs  = 4096
)

// mostLinks is the largest number of links of a device. Source: nvml.h, NVML_NVLINK_MAX_LINKS.
const mostLinks = 18

// links counts the links that are up. A device without NVLink does not support the call. One with
// fewer links than another refuses the numbers beyond its own. Neither is a fact unknown.
func (q *asker) links() (n int) {
	if lib.link == nil {
		q.told("NVLinks", notFound)
		return 0
	}
	for link := range mostLinks {
		up, status := sysNumberOf(lib.link, q.device, link)
		if status == notSupported || status == invalidArgument {
			continue
		}
		if !q.told(fmt.Sprintf("NVLink %d", link), status) {
			return n
		}
		n += up
	}
	return n
}

// computeModes are in the order of nvml.h, nvmlComputeMode_t.
var computeModes = []string{"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"}

func computeMode(m int) string {
	if m < len(computeModes) {
		return computeModes[m]
	}
	return fmt.Sprintf("mode %d", m)
}

// processBytes turns NVML's "not available" into -1.
func processBytes(n uint64) int {
	if n == ^uint64(0) {
		return -1
	}
	return int(n)
}

// set returns the numbers of the bits that are set.
func set(words []uint) (members []int) {
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			members = append(members, i*bits.UintSize+bits.TrailingZeros(w))
		}
	}
	return members
}
