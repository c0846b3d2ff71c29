package spmd

import (
	"context"
	rtrace "runtime/trace"

	"lockstep/spmd/internal/trace"
)

// Region is a part of a program that has a name, from World.Region to End.
type Region struct {
	w    *World
	name string
	mark trace.Mark
	task *rtrace.Region
}

// Region begins a part of the program that --summary and --trace show under its name:
//
//	defer w.Region("forward").End()
//
// Regions lie inside of one another. A region is the time of the goroutine that begins and ends it:
// work that it enqueues on streams may run later. Go's own tracer gets the region too, if it runs,
// and so does a tool such as Nsight Systems that listens (NVTX_INJECTION64_PATH). Else a Region
// costs a comparison.
func (w *World) Region(name string) Region {
	r := Region{w: w, name: name, mark: w.rank().Calls.Begin(trace.Region)}
	if rtrace.IsEnabled() {
		r.task = rtrace.StartRegion(context.Background(), name)
	}
	return r
}

// End ends the region, on the goroutine that began it.
func (r Region) End() {
	if r.task != nil {
		r.task.End()
	}
	r.w.rank().Calls.End(r.mark, trace.Region, r.name, 0)
}

// Summarize adds a line to the summary at the end of the run (--summary). It has a name and a
// value, such as a rate that the program knows. The summary shows the lines of rank 0. A name that
// was added before gets another value. It does not block.
func (w *World) Summarize(name, value string) { w.rank().Trace.Add(name, value) }
