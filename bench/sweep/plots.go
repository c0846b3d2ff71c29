package sweep

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"lockstep/bench/measure"
	"lockstep/launch/inspect"
)

// rankTicks marks the measured numbers of ranks.
func rankTicks(lines []measure.Measured) plot.Ticker {
	at := map[int]bool{}
	for _, m := range lines {
		at[m.Ranks] = true
	}
	var ticks plot.ConstantTicks
	for _, n := range slices.Sorted(maps.Keys(at)) {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: strconv.Itoa(n)})
	}
	return ticks
}

// overwrite has inspect.WriteFigure replace the plots of an earlier sweep.
const overwrite = true

// plot draws the measurements so far.
func (s *sweep) plot() error {
	at := func(name string) string { return filepath.Join(s.Out, s.Set+"-"+name+".svg") }
	_, machine := s.Hardware()
	apps := map[string][]measure.Measured{}
	for _, m := range s.all {
		apps[m.App] = append(apps[m.App], m)
	}
	for _, op := range s.ops {
		for _, t := range s.types {
			for _, n := range s.ranks {
				lines := slices.DeleteFunc(slices.Clone(apps["sweep"]),
					func(m measure.Measured) bool { return m.Op != op.Name || m.Dtype != t.Name || m.Ranks != n })
				if err := inspect.WriteFigure(at(fmt.Sprintf("%s-%s-%d", op.Name, t.Name, n)), overwrite,
					bySize(lines, fmt.Sprintf("%s, %s, %s", op.Name, t.Name, onRanks(n)), machine)...); err !=
					nil {
					return err
				}
			}
		}
	}
	for _, app := range appNames {
		if err := inspect.WriteFigure(at("scaling-"+app), overwrite, byRanks(app, apps[app])...); err != nil {
			return err
		}
	}
	if err := inspect.WriteFigure(at("reduce-times"), overwrite, distribution(apps["reduce"], machine)); err != nil {
		return err
	}
	return inspect.WriteFigure(at("cost"), overwrite, costs(apps["cost"])...)
}

// bySize returns the latency and the bus bandwidth of one collective.
func bySize(lines []measure.Measured, title, machine string) []inspect.Panel {
	us := inspect.Panel{Title: title, X: "bytes", Y: "time of a call, us", XTicks: plot.TickerFunc(sizeTicks)}
	bus := inspect.Panel{Title: machine, X: "bytes", Y: "bus bandwidth, GB/s", XTicks: plot.TickerFunc(sizeTicks)}
	slices.SortStableFunc(lines, func(a, b measure.Measured) int { return a.Bytes - b.Bytes })
	for _, m := range lines {
		us.Add(m.Label(), float64(m.Bytes), m.MedianUS)
		bus.Add(m.Label(), float64(m.Bytes), m.BusGBps)
	}
	return []inspect.Panel{us, bus}
}

// byRanks returns the speed-up at the same work, and the efficiency at growing work.
func byRanks(app string, lines []measure.Measured) []inspect.Panel {
	up := inspect.Panel{Title: app + ", strong scaling", X: "ranks", Y: "speed-up", XTicks: rankTicks(lines)}
	efficiency := inspect.Panel{Title: app + ", weak scaling", X: "ranks", Y: "efficiency", XTicks: rankTicks(lines),
		LinearY: true}
	slices.SortStableFunc(lines, func(a, b measure.Measured) int { return a.Ranks - b.Ranks })
	var ideal, one inspect.Curve
	for _, m := range lines {
		n, least := float64(m.Ranks), float64(lines[0].Ranks)
		if m.Scaling == strong {
			up.Add(m.Label(), n, m.SpeedUp)
		} else {
			efficiency.Add(m.Label(), n, m.Efficiency)
		}
		ideal.Points = append(ideal.Points, plotter.XY{X: n, Y: n / least})
		one.Points = append(one.Points, plotter.XY{X: n, Y: 1})
	}
	up.Reference, efficiency.Reference = []inspect.Curve{ideal}, []inspect.Curve{one}
	return []inspect.Panel{up, efficiency}
}

// apart is the least ratio of two times that are drawn as two points. Most of 10,000 times would
// fall on the same place.
const apart = 1.002

// distribution returns the cumulative distribution of reduce's times. A side that does not give
// every time is drawn by its least, its median, its 99th percentile and its greatest.
func distribution(lines []measure.Measured, machine string) inspect.Panel {
	p := inspect.Panel{Title: "times of reduce; " + machine, X: "us", Y: "cumulative part of the times", LinearY: true,
		NoMarks: true}
	for _, m := range lines {
		if m.Scaling != strong {
			continue
		}
		name := fmt.Sprintf("%s, %s: p50 %.1f us, p99 %.1f us, max %.1f us",
			m.Label(), onRanks(m.Ranks), m.MedianUS, m.P99US, m.MaxUS)
		if len(m.SamplesUS) == 0 {
			for _, q := range []plotter.XY{
				{X: m.MinUS, Y: 0}, {X: m.MedianUS, Y: 0.5}, {X: m.P99US, Y: 0.99}, {X: m.MaxUS, Y: 1},
			} {
				p.Add(name, q.X, q.Y)
			}
			continue
		}
		sorted := slices.Sorted(slices.Values(m.SamplesUS))
		drawn, n := 0.0, float64(len(sorted))
		for i, us := range sorted {
			if us < drawn*apart && i+1 < len(sorted) {
				continue
			}
			if i > 0 { // the last of those that fell on the place before
				p.Add(name, sorted[i-1], float64(i)/n)
			}
			p.Add(name, us, float64(i)/n)
			p.Add(name, us, float64(i+1)/n)
			drawn = us
		}
	}
	return p
}

// costs returns the time of the smallest all-reduce, of the start, and the memory of a rank.
func costs(lines []measure.Measured) []inspect.Panel {
	ticks := rankTicks(lines)
	us := inspect.Panel{Title: "all-reduce of 8 bytes", X: "ranks", Y: "us", XTicks: ticks}
	start := inspect.Panel{Title: "start to the end of the first collective", X: "ranks", Y: "ms", XTicks: ticks}
	memory := inspect.Panel{Title: "peak memory of a rank", X: "ranks", Y: "MiB", XTicks: ticks, LinearY: true}
	for _, m := range lines {
		us.Add(m.Label(), float64(m.Ranks), m.MedianUS)
		if m.Side == measure.Ours && !m.Graph {
			start.Add(m.Label(), float64(m.Ranks), m.StartupMS)
			memory.Add(m.Label(), float64(m.Ranks), m.PeakMiB)
		}
	}
	return []inspect.Panel{us, start, memory}
}
