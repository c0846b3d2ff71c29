// Package library is for authors of packages on top of spmd. It has what such a package needs and a
// program does not. The packages of this module that compute, write files or measure, such as blas
// and checkpoint, use it too.
//
// A call into a library that works on streams is a [Function]. [PerWorld] keeps what a package has
// opened for a world, and [AtClose] closes it:
//
//	var handles = library.PerWorld[handle]{Open: func(w *spmd.World) *handle {
//		h := &handle{device: library.GPU(w)}
//		library.AtClose(w, h.close)
//		return h
//	}}
//
// A package that has collective calls of its own asks [WorldOf], which refuses a communicator that
// cannot be used. Its ranks make one choice by [Choose].
package library
