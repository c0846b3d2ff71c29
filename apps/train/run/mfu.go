package run

import "strings"

// peaks are the floating-point operations that GPUs do in a second at best, on dense matrices of bfloat16. The first whose
// name is part of the device's counts.
// Source: NVIDIA's data sheets of each, without sparsity.
var peaks = []struct {
	name  string
	flops float64
}{
	{"B300", 2250e12}, {"B200", 2250e12}, {"GH200", 989.4e12}, {"H200", 989.4e12}, {"H100 PCIe", 756e12}, {"H100 NVL", 835.5e12}, {"H100", 989.4e12},
	{"A100", 312e12}, {"L40S", 362e12}, {"L4", 121e12}, {"A10", 125e12},
}

// peakFlops is what a device does in a second at best with activations of a type; 0 where that is not known.
func peakFlops(device, dtype string) float64 {
	if dtype != "bfloat16" {
		return 0
	}
	for _, p := range peaks {
		for _, word := range []string{" " + p.name + " ", " " + p.name + "-"} {
			if strings.Contains(" "+device+" ", word) {
				return p.flops
			}
		}
	}
	return 0
}
