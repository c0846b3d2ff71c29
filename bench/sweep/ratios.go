package sweep

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"lockstep/bench/measure"
)

// ratios adds a row for each of our lines and each peer that measured the same. The fastest of a
// peer's sides counts: they are the same collective on several kinds of memory, and ours may take
// any. But ours on plain memory is not compared with NCCL's symmetric memory, which it cannot have.
// A peer without graphs is compared with ours in one.
func (s *sweep) ratios(lines []measure.Measured) {
	for _, m := range lines {
		if m.Side != measure.Ours {
			continue
		}
		for _, peer := range peers {
			var theirs []measure.Measured
			for _, p := range lines {
				k := p.Kind
				k.Side, k.Stream, k.Symmetric = m.Side, m.Stream, m.Symmetric
				if !peer.graphs {
					k.Graph = m.Graph
				}
				if k == m.Kind && strings.HasPrefix(p.Side, peer.name) && (m.Symmetric || !p.Symmetric) {
					theirs = append(theirs, p)
				}
			}
			if len(theirs) == 0 {
				continue
			}
			best := slices.MinFunc(theirs,
				func(a, b measure.Measured) int { return cmp.Compare(a.MedianUS, b.MedianUS) })
			r := measure.Row{What: m.What(), Ranks: m.Ranks, Ours: m.MedianUS, Unit: "us", Goal: s.goal}
			if peer.flag == ncclTests {
				if m.Symmetric && len(theirs) > 1 {
					r.What += ", against the better of plain and symmetric NCCL"
				}
				r.Goal = s.ncclGoal(m, best)
			}
			s.CompareTimes(r, best.Side, best.MedianUS)
			if peer.flag == ncclTests {
				s.smallGoals(m, theirs)
			}
		}
	}
	slices.SortStableFunc(s.Rows, func(a, b measure.Row) int { return cmp.Compare(a.Ranks, b.Ranks) })
}

// The goals against nccl-tests: of an all-reduce of largeBytes and more, and of one of at most
// smallBytes in a graph and on symmetric memory: against NCCL's symmetric kernels, and how much
// faster than its others on 4 GPUs or more.
const (
	largeBytes, largeGoal = 64 << 20, 1.01
	smallBytes            = 16 << 10
	smallGoal             = 1.05
	smallSpeedUp          = 2.1
	smallSpeedUpRanks     = 4
)

// ncclGoal returns the ratio asked for against one of nccl-tests' lines: eager calls have some of
// the host's time on top.
func (s *sweep) ncclGoal(m, theirs measure.Measured) float64 {
	goal := s.goal
	if m.Op == "allreduce" && m.Bytes >= largeBytes {
		goal = min(goal, largeGoal)
	}
	if !m.Graph {
		goal += measure.HostOverhead / theirs.MedianUS
	}
	return goal
}

// smallGoals adds the rows of a small all-reduce in a graph and on symmetric memory.
func (s *sweep) smallGoals(m measure.Measured, theirs []measure.Measured) {
	if m.Op != "allreduce" || m.Bytes > smallBytes || !m.Graph || !m.Symmetric || m.Ranks < 2 {
		return
	}
	for _, p := range theirs {
		r := measure.Row{What: m.What() + ", against symmetric NCCL", Ranks: m.Ranks, Ours: m.MedianUS, Unit: "us",
			Goal: smallGoal}
		if !p.Symmetric {
			if m.Ranks < smallSpeedUpRanks {
				continue
			}
			r.What, r.Goal = fmt.Sprintf("%s: time, as a part of that of plain NCCL", m.What()), 1/smallSpeedUp
		}
		s.CompareTimes(r, p.Side, p.MedianUS)
	}
}
