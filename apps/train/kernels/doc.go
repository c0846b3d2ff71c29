// Package kernels computes the parts of a model beside matrix products and attention, on the host
// and on a GPU. A method of Launcher enqueues each kernel and says what it computes.
package kernels
