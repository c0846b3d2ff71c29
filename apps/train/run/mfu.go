package run

import "lockstep/apps/train/layout"

// peakFlops returns a device's peak of operations a second with activations
// of a type, or 0 if unknown.
func peakFlops(device, dtype string) float64 {
	if g, ok := layout.FindGPU(device); ok && dtype == "bfloat16" {
		return g.Flops
	}
	return 0
}
