package cudaexec

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
)

// advice has the driver's words for an Advice, and whether they concern the device.
var advice = [...]struct {
	a      cuda.Advice
	device bool
}{
	exec.ReadMostly:          {cuda.SetReadMostly, true},
	exec.NotReadMostly:       {cuda.UnsetReadMostly, true},
	exec.PreferDevice:        {cuda.SetPreferredLocation, true},
	exec.PreferHost:          {cuda.SetPreferredLocation, false},
	exec.PreferNone:          {cuda.UnsetPreferredLocation, true},
	exec.AccessedByDevice:    {cuda.SetAccessedBy, true},
	exec.NotAccessedByDevice: {cuda.UnsetAccessedBy, true},
}

// Advise implements exec.Device. The driver may move pages then, and wait for the device.
func (d *CUDA) Advise(b *exec.Block, p unsafe.Pointer, n int, a exec.Advice) error {
	if err := d.Quiesce(); err != nil {
		return err
	}
	d.mu.Lock()
	if d.told == nil {
		d.told = map[unsafe.Pointer]bool{}
	}
	d.told[b.Ptr] = true
	d.mu.Unlock()
	return d.advise(p, n, a)
}

func (d *CUDA) advise(p unsafe.Pointer, n int, a exec.Advice) error {
	say := advice[a]
	if !say.device {
		return d.GPU.Dev.Advise(p, n, say.a, nil)
	}
	return d.GPU.Dev.Advise(p, n, say.a, d.GPU.Dev)
}

func (d *CUDA) Unadvise(b *exec.Block) error {
	d.mu.Lock()
	told := d.told[b.Ptr]
	d.mu.Unlock()
	if !told {
		return nil
	}
	err := d.Quiesce()
	for _, a := range []exec.Advice{exec.NotReadMostly, exec.PreferNone, exec.NotAccessedByDevice} {
		if err == nil {
			err = d.advise(b.Ptr, b.Size, a)
		}
	}
	if err == nil {
		d.mu.Lock()
		delete(d.told, b.Ptr)
		d.mu.Unlock()
	}
	return err
}

// prefetch moves pages. Nothing is captured: the caller refuses that.
func (q *Queue) prefetch(c *exec.Command) error {
	if c.N == 0 {
		return nil
	}
	to := q.g.Dev
	if c.Place == exec.ToHost {
		to = nil
	}
	return q.h.Prefetch(c.Dst, c.N, to)
}
