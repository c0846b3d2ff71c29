package transport

import (
	"runtime"
	"sync/atomic"
)

const (
	// spins is about a microsecond: as long as a rank needs that is on its way.
	spins = 4000
	// fewSpins are for a rank that has found the other on its own core.
	fewSpins = 20
	// trial is how many waits of few looks come before one of all.
	trial = 64
	// pauses is about 40 ns.
	pauses = 70
	// yields is how often a rank lets others run before it sleeps: to be woken
	// takes the time of some hundred.
	yields    = 200
	fewYields = 20 // where ranks share cores
)

// patience is how long a rank looks at memory that another rank writes. Each has a core of its own,
// but the system gives cores to other programs too. Then the Go runtime may run two ranks on one
// core, and the one that looks keeps the other from it.
type patience struct {
	spins int // looks before others may run
	left  int // waits of few looks before one of all
}

// pause comes between a rank's write and its first look at the write of another rank. A look that
// comes too early takes the line of the cache away from the other rank, and is in vain.
func (p *patience) pause() {
	if p.spins > fewSpins {
		linger()
	}
}

// linger is a function of its own, whose beginning is aligned: inside of another the time of the
// loop depends on where it lies.
//
//go:noinline
func linger() {
	for range pauses {
	}
}

// await waits until v is at least want, which rank sees to.
func (r *Member) await(v *atomic.Uint64, want uint64, rank int) error {
	for range r.patience.spins {
		if v.Load() >= want {
			return nil
		}
	}
	return r.wait(v, want, rank)
}

// wait is await for what takes longer.
func (r *Member) wait(v *atomic.Uint64, want uint64, rank int) error {
	if r.tryAll(v, want) {
		return nil
	}
	p := &r.patience
	for i := range r.team.yields {
		runtime.Gosched()
		if v.Load() >= want {
			if i == 0 && p.spins > fewSpins { // it was behind this rank on the same core
				p.spins, p.left = fewSpins, trial
			}
			return nil
		}
	}
	return r.team.sleep(v, want, rank)
}

// tryAll looks, now and then, as often as a rank does that has a core of its own. If that is
// enough, it has one again.
func (r *Member) tryAll(v *atomic.Uint64, want uint64) bool {
	p := &r.patience
	if p.spins == r.team.spins {
		return false
	}
	if p.left--; p.left > 0 {
		return false
	}
	p.left = trial
	for range r.team.spins {
		if v.Load() >= want {
			p.spins = r.team.spins
			return true
		}
	}
	return false
}
