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
func enqueue(w *spmd.World) error {
	s, err := w.NewStream("enqueue")
	if err != nil {
		return err
	}
	src, err := ones(w)
	if err != nil {
		return err
	}
	dst, err := spmd.Alloc[float32](w, src.Len())
	if err != nil {
		return err
	}
	c := w.Comm().On(s)
	if err := record(w, enqueueing(s), "spmd.AllReduce on a stream",
		func() error { return spmd.AllReduce(c, dst, src, spmd.Sum) }); err != nil {
		return err
	}
	return summed(w, dst)
}

// ones returns a buffer of 8 bytes, with a 1 in each element.
func ones(w *spmd.World) (spmd.Buffer[float32], error) {
	x, err := spmd.Alloc[float32](w, 2)
	if err == nil {
		err = x.SetAll(1)
	}
	return x, err
}

// summed compares x with the sum of all ranks' ones.
func summed(w *spmd.World, x spmd.Buffer[float32]) error {
	h := make([]float32, x.Len())
	if err := x.CopyTo(h); err != nil {
		return err
	}
	for _, got := range h {
		if want := float32(w.Size()); got != want {
			return fmt.Errorf("the collective gave %v, want %v", got, want)
		}
	}
	return nil
}

// launch measures the host's time for the launch of a kernel.
func launch(w *spmd.World) error {
	s, err := w.NewStream("launch")
	if err != nil {
		return err
	}
	x, err := ones(w)
	if err != nil {
		return err
	}
	grid := spmd.Cover1D(1, 1)
	return record(w, enqueueing(s), "spmd.Kernel.Launch",
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
func startup(w *spmd.World) error {
	x, err := ones(w)
	if err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm(), x, x, spmd.Sum); err != nil {
		return err
	}
	age := process.Age()
	if err := summed(w, x); err != nil {
		return err
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
	return w.Emit(Started{"startup", w.Size(), most.At(0), most.At(1)})
}
