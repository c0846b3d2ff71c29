package exec

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// Library is a call into a library that works on streams.
type Library struct {
	Name    string
	Kernels []*Kernel // that Device launches beside the library's own
	// Device has the library enqueue its work on q, which is a queue of a GPU. work is memory of as
	// many bytes as the call asked for. nil if the library has no such form.
	Device func(q Queue, args []Arg, work unsafe.Pointer, bytes int) error
	Host   func(Args) error // the same on the host; nil if there is none
	// OnlyKernels says that Device does nothing but launch Kernels.
	OnlyKernels bool
	// Describe says by which name a call stands in the summary, and how many bytes it moves, 0 if
	// that is not known; nil if all calls have Name. Its result for equal calls lies at one place.
	Describe func(Args) (name string, bytes int)
	// Written are the arguments that a call writes, as bits; 0 if that is not known.
	Written uint64
	Closed  atomic.Bool
	ready   atomic.Pointer[[]any]
}

// ReadyOn reports whether the library has been called on a device.
func (l *Library) ReadyOn(device any) bool {
	list := l.ready.Load()
	return list != nil && slices.Contains(*list, device)
}

// SetReady notes that the library is called on a device.
func (l *Library) SetReady(device any) {
	for {
		old := l.ready.Load()
		list := []any{device}
		if old != nil {
			list = append(list, *old...)
		}
		if l.ready.CompareAndSwap(old, &list) {
			return
		}
	}
}
