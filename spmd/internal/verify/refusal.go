package verify

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"lockstep/spmd/internal/coll"
)

// refusal is a call of all ranks that one of them was refused.
type refusal struct {
	Comm  string `json:"c"`
	Kind  string `json:"k"`
	At    uint64 `json:"n"` // calls of all ranks before it
	Why   string `json:"w"`
	Late  bool   `json:"l,omitempty"` // the rank has made no such call for lateAfter heartbeats
	sure  bool   // each call before it has begun: else nobody knows its number
	heard int    // heartbeats since; the Reporter's
}

// lateAfter is how many heartbeats a program has to make a call that it was refused.
const lateAfter = 3

// Refused notes that this rank was refused a call of all ranks, and whether each call before it has
// begun.
func (r *Recorder) Refused(kind coll.Kind, idle bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = &refusal{Comm: r.ID, Kind: kind.String(), At: r.calls.Load(), Why: err.Error(), sure: idle}
}

// refusals returns the last refusal if that is news: there is one, it is late, or it is not any
// more.
func (r *Recorder) refusals() []refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.refused
	if f == nil {
		return nil
	}
	f.heard++
	late := f.sure && f.heard >= lateAfter && r.calls.Load() == f.At
	if late == f.Late && f.heard > 1 {
		return nil
	}
	f.Late = late
	return []refusal{*f}
}

// lastRefused returns the last refusal, and 1 more than the number of calls before it, if that is
// known. Without one both are zero.
func (r *Recorder) lastRefused() (f refusal, number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.refused == nil:
		return f, 0
	case !r.refused.sure:
		return *r.refused, math.MaxUint64
	}
	return *r.refused, r.refused.At + 1
}

// leftOut says which call ranks wait for that one of them was refused, and they were not; "" if
// there is none.
func (l *Analyzer) leftOut() string {
	for _, at := range slices.Sorted(maps.Keys(l.standing)) {
		s := l.standing[at]
		for i := range s.Comms {
			p := &s.Comms[i]
			for rank, f := range l.refused {
				if rank != at && f.Late && f.Comm == p.Comm && p.Calls > f.At && p.Refused <= f.At &&
					p.In != "" && !p.Alone && l.pages[f.Comm].made(f.At+1, f.Kind) {
					return fmt.Sprintf("rank %d was refused %s, and goes on without it: %s; rank %d %s",
						rank, f.Kind, f.Why, at, p.ahead())
				}
			}
		}
	}
	return ""
}

// made reports whether a rank is known to have made a call of a kind.
func (p *pages) made(number uint64, kind string) bool {
	if p == nil {
		return false
	}
	for _, o := range p.of {
		for _, x := range o.Last {
			what, ok := strings.CutPrefix(withoutPlace(x.Text), kind)
			if x.Number == number && ok && (what == "" || what[0] == ',' || strings.HasPrefix(what, " of ")) {
				return true
			}
		}
	}
	return false
}
