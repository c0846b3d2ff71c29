package layout

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// GPU is the data of a kind of GPU.
type GPU struct {
	Name      string  // part of the device's name
	Memory    int     // bytes
	Flops     float64 // operations a second at best, on dense matrices of bfloat16
	Bandwidth float64 // bytes of memory a second
	Link      float64 // bytes a second of a large all-reduce between GPUs of a node, as nccl-tests count them
}

// gpus are the known ones. The first whose name is part of a device's name counts. Source: NVIDIA's
// data sheets of each, without sparsity. Link was measured on H200. Others have it in proportion to
// NVLink in the data sheet, or as PCIe usually has it.
var gpus = []GPU{
	{"B300", 288e9, 2250e12, 8e12, 632e9},
	{"B200", 180e9, 2250e12, 8e12, 632e9},
	{"GH200", 96e9, 989.4e12, 4e12, 316e9},
	{"H200", 141e9, 989.4e12, 4.8e12, 316e9},
	{"H100 PCIe", 80e9, 756e12, 2e12, 20e9},
	{"H100 NVL", 94e9, 835.5e12, 3.9e12, 20e9},
	{"H100", 80e9, 989.4e12, 3.35e12, 316e9},
	{"A100", 80e9, 312e12, 2e12, 211e9},
	{"L40S", 48e9, 362e12, 0.864e12, 20e9},
	{"L4", 24e9, 121e12, 0.3e12, 10e9},
	{"A10", 24e9, 125e12, 0.6e12, 10e9},
}

// FindGPU returns the GPU of a device's name.
func FindGPU(device string) (GPU, bool) {
	for _, g := range gpus {
		for _, word := range []string{" " + g.Name + " ", " " + g.Name + "-"} {
			if strings.Contains(" "+device+" ", word) {
				return g, true
			}
		}
	}
	return GPU{}, false
}

// ParseGPU returns the GPU that a person has named: NAME, or NAME:GB with another memory.
func ParseGPU(text string) (GPU, error) {
	name, memory, given := strings.Cut(text, ":")
	g, ok := FindGPU(name)
	if !ok {
		var names []string
		for _, g := range gpus {
			names = append(names, g.Name)
		}
		return g, fmt.Errorf("--gpu %s: unknown, want one of %s", text, strings.Join(names, ", "))
	}
	if given {
		n, err := strconv.ParseFloat(memory, 64)
		if err != nil || !(n >= 1 && n <= 1e6) {
			return g, fmt.Errorf("--gpu %s: want its memory in GB, as %s:40", text, g.Name)
		}
		g.Memory = int(n * 1e9)
	}
	return g, nil
}

// Machine is nodes of equal GPUs, and their connections.
type Machine struct {
	GPU
	PerNode int
	Network float64 // bytes a second between nodes, for each GPU
	Latency float64 // seconds of a step of an algorithm there
}

// NodesOf returns a machine of nodes with perNode GPUs each, and with a usual network, which was
// not measured.
func NodesOf(g GPU, perNode int) Machine {
	return Machine{GPU: g, PerNode: perNode, Network: 50e9, Latency: 5e-6}
}

// allReduce returns how long a sum of n bytes takes over ranks; here is the number in each node.
// The fit to 2 and 4 GPUs is from docs/speed.md. Between nodes it is the network's best.
func (m Machine) allReduce(n float64, ranks, here int) float64 {
	here = max(1, min(here, ranks))
	nodes := float64((ranks + here - 1) / here)
	t, g := 0.0, float64(here)
	if here > 1 {
		slower := 316e9 / m.Link
		ring := 16.5e-6 + slower*n*2*(g-1)/g/316e9
		doubling := 1.5e-6 + math.Log2(g)*(0.98e-6+slower*n/102e9)
		t = min(ring, doubling)
	}
	if nodes > 1 {
		t += 2*(nodes-1)/nodes*n/g/m.Network + m.Latency*min(2*(nodes-1), 2*math.Ceil(math.Log2(nodes)))
	}
	return t
}

// send returns how long a message of n bytes takes.
func (m Machine) send(n float64, inNode bool) float64 {
	if inNode {
		return 3e-6 + n/m.Link
	}
	return m.Latency + n/m.Network
}
