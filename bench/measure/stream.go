package measure

import (
	_ "embed"
	"fmt"

	"golang.org/x/sys/unix"

	"lockstep/internal/process"
	"lockstep/spmd"
)

//go:embed kernels.cu
var source string

var nop = spmd.NewKernel("nop", source, func(spmd.Args) error { return nil })

// enqueue measures the host's time for an all-reduce on a stream.
func enqueue(w *spmd.World, bytes int) error {
	s, err := w.NewStream("enqueue")
	if err != nil {
		return err
	}
	dst, src, err := operands(w, bytes/4, spmd.Alloc[float32])
	if err != nil {
		return err
	}
	c := w.Comm().On(s)
	return record(w, bytes, enqueueing(s), "spmd.AllReduce on a stream", func() error { return checkSums(w, dst) },
		func() error { return spmd.AllReduce(c, dst, src, spmd.Sum) })
}

// launch measures the host's time for the launch of a kernel.
func launch(w *spmd.World, bytes int) error {
	s, err := w.NewStream("launch")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float32](w, bytes/4)
	if err != nil {
		return err
	}
	grid := spmd.Cover1D(1, 1)
	return record(w, bytes, enqueueing(s), "spmd.Kernel.Launch", nothing,
		func() error { return nop.Launch(s, grid, x.Arg(), x.Arg(), spmd.I32(x.Len())) })
}

// Started is a line of the startup measurement.
type Started struct {
	What  string `json:"what"`
	Ranks int    `json:"ranks"`
	// MS is from the start of the process to the end of the first collective. PeakMiB is the most
	// memory that it took. Each is of the rank with the most.
	MS      float64 `json:"ms"`
	PeakMiB float64 `json:"peak_mib"`
}

// startup measures how long this process needed until the end of its first collective.
func startup(w *spmd.World, bytes int) error {
	x, err := spmd.Alloc[float32](w, bytes/4)
	if err != nil {
		return err
	}
	if err := x.SetAll(1); err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm(), x, x, spmd.Sum); err != nil {
		return err
	}
	age := process.Age()
	if got := x.At(0); got != float32(w.Size()) {
		return fmt.Errorf("the first collective gave %v, want %d", got, w.Size())
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return err
	}
	most, err := spmd.AllocPinned[float64](w, 2)
	if err != nil {
		return err
	}
	most.Set(0, float64(age.Nanoseconds())/1e6)
	most.Set(1, float64(used.Maxrss)/1024) // from KiB
	if err := spmd.AllReduce(w.Comm(), most, most, spmd.Max); err != nil {
		return err
	}
	return emit(w, Started{"startup", w.Size(), most.At(0), most.At(1)})
}
