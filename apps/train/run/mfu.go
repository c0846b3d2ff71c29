package run

import "lockstep/apps/train/cost"

// peakFlops is what a device does in a second at best with activations of a
// type; 0 where that is not known.
func peakFlops(device, dtype string) float64 {
	if g, ok := cost.Find(device); ok && dtype == "bfloat16" {
		return g.Flops
	}
	return 0
}
