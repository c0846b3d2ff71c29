package dashboard

import (
	"cmp"
	"slices"
)

// spending is the recent uses of a rank's time.
type spending struct {
	over    float64 // ns; 0 without two samples
	phases  []spent
	regions []spent
	waits   float64 // ns in which it was waiting for other ranks
	meets   bool    // it does wait for them, in calls that are timed
}

// spent is the time of a phase, in ns.
type spent struct {
	name  string
	nanos float64
	some  bool // it has ever come
}

// spending compares the latest sample with one of a window ago, or the oldest.
func (h *history) spending() (s spending) {
	last := h.last()
	if last == nil {
		return s
	}
	first := last
	for _, o := range slices.Backward(h.samples) {
		if last.At-first.At >= int64(window) {
			break
		}
		first = o
	}
	s.over = float64(last.At - first.At)
	s.phases, s.regions = between(first.Phases, last.Phases), between(first.Regions, last.Regions)
	for i, p := range last.Phases {
		if p.Meets {
			s.waits += s.phases[i].nanos
			s.meets = true
		}
	}
	return s
}

func between(first, last []Phase) []spent {
	list := make([]spent, len(last))
	for i, p := range last {
		list[i] = spent{p.Name, float64(p.Nanos), p.Count > 0}
		for _, o := range first {
			if o.Name == p.Name {
				list[i].nanos = max(0, float64(p.Nanos-o.Nanos))
			}
		}
	}
	return list
}

// of returns the share of a phase.
func (s *spending) of(list []spent, name string) float64 {
	for _, p := range list {
		if p.name == name && s.over > 0 {
			return p.nanos / s.over
		}
	}
	return 0
}

// phasesOf are the phases that some rank was ever in, in the ranks' order.
func phasesOf(all []spending) []string {
	names := []string{}
	for i := range all {
		for _, p := range all[i].phases {
			if p.some && !slices.Contains(names, p.name) {
				names = append(names, p.name)
			}
		}
	}
	return names
}

// regionsOf are the regions that take longest, the longest first.
func regionsOf(all []spending) []string {
	var sums []spent
	for i := range all {
		for _, p := range all[i].regions {
			at := slices.IndexFunc(sums, func(s spent) bool { return s.name == p.name })
			if at < 0 {
				at, sums = len(sums), append(sums, spent{name: p.name})
			}
			sums[at].nanos += p.nanos
		}
	}
	slices.SortFunc(sums, func(a, b spent) int {
		return cmp.Or(cmp.Compare(b.nanos, a.nanos), cmp.Compare(a.name, b.name))
	})
	names := []string{}
	for _, s := range sums[:min(len(sums), mostRegions)] {
		names = append(names, s.name)
	}
	return names
}

// slowest finds the rank that the others wait for: the last to come finds all others there, and
// waits least. It is nil if the ranks do not differ clearly. known says whether all of them have
// told how long they waited; waits in graphs do not count.
func slowest(all []spending) (found *Slowest, known bool) {
	var s Slowest
	for r := range all {
		if all[r].over == 0 || !all[r].meets {
			return nil, false
		}
		share := all[r].waits / all[r].over
		if r == 0 || share < s.Least {
			s.Rank, s.Least = r, share
		}
		s.Most = max(s.Most, share)
	}
	if len(all) < 2 || s.Most-s.Least < clearly {
		return nil, true
	}
	return &s, true
}
