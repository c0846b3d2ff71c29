// Package cost estimates how long a step of training takes on GPUs, in every division of a model,
// from measured rates.
package cost
