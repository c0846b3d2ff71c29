package dashboard

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep/spmd/internal/dashboard"
)

// collector gives Prometheus all that a board knows of the ranks.
type collector struct{ board *dashboard.Board }

// Describe describes nothing: which metrics there are depends on what the ranks tell.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// metric is the metrics of one name.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("lockstep_"+name, help, labels, nil), prometheus.GaugeValue}
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("lockstep_"+name, help, labels, nil), prometheus.CounterValue}
}

var (
	info = gauge("info", "The job.", "program", "ranks", "nodes", "device", "collectives")
	up   = gauge("running_seconds", "Time since the start of the job.")
	said = gauge("program", "What the program says of itself, such as its loss.", "name")

	heard   = gauge("rank_heard_seconds", "Time since a rank was heard.", "rank")
	seconds = counter("seconds_total", "Time of a rank in a phase, on the host and on its streams.", "rank", "phase")
	calls   = counter("calls_total", "Calls of a rank in a phase.", "rank", "phase")
	bytes   = counter("bytes_total", "Bytes of calls of a rank in a phase.", "rank", "phase")
	regions = counter("region_seconds_total", "Time of a rank in a part of the program that has a name.",
		"rank", "region")
	pool    = gauge("buffers_bytes", "Memory that buffers of a rank have.", "rank", "kind")
	peak    = gauge("buffers_peak_bytes", "The most memory that buffers of a rank had at one time.", "rank", "kind")
	process = gauge("process_resident_bytes", "Memory of a rank's process.", "rank")
	free    = gauge("node_memory_available_bytes", "Memory that processes of a node can still have.", "node", "host")
	total   = gauge("node_memory_bytes", "Memory of a node.", "node", "host")

	gpuUsed     = gauge("gpu_memory_used_bytes", "Memory of a GPU in use, by all processes.", "rank")
	gpuTotal    = gauge("gpu_memory_bytes", "Memory of a GPU.", "rank")
	clock       = gauge("gpu_clock_hertz", "Clock of a GPU's multiprocessors.", "rank")
	mostClock   = gauge("gpu_clock_max_hertz", "The highest clock of a GPU's multiprocessors.", "rank")
	memoryClock = gauge("gpu_memory_clock_hertz", "Clock of a GPU's memory.", "rank")
	power       = gauge("gpu_power_watts", "Power that a GPU takes.", "rank")
	limit       = gauge("gpu_power_limit_watts", "Power that a GPU may take.", "rank")
	heat        = gauge("gpu_temperature_celsius", "Temperature of a GPU.", "rank")
	busy        = gauge("gpu_busy_ratio", "Part of the time in which a kernel ran.", "rank")
	slowed      = gauge("gpu_slowed", "1 for each reason why the clock of a GPU is lower than it could be.",
		"rank", "reason")
)

// Collect gives the present values.
func (c collector) Collect(to chan<- prometheus.Metric) {
	add := func(m metric, value float64, labels ...string) {
		for i, text := range labels {
			labels[i] = strings.ToValidUTF8(text, "\uFFFD")
		}
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
	}
	now := c.board.Now()
	add(info, 1, now.Program, strconv.Itoa(now.Ranks), strconv.Itoa(now.Nodes), now.Device, now.Collectives)
	add(up, now.Seconds)
	for _, n := range now.Numbers {
		add(said, n.Last, n.Name)
	}
	for _, s := range now.Heard {
		rank := strconv.Itoa(s.Rank)
		add(heard, s.Age, rank)
		for _, p := range s.Phases {
			add(seconds, float64(p.Nanos)/1e9, rank, p.Name)
			add(calls, float64(p.Count), rank, p.Name)
			add(bytes, float64(p.Bytes), rank, p.Name)
		}
		for _, p := range s.Regions {
			add(regions, float64(p.Nanos)/1e9, rank, p.Name)
		}
		for _, p := range s.Pools {
			add(pool, float64(p.Used), rank, p.Kind)
			add(peak, float64(p.Peak), rank, p.Kind)
		}
		add(process, float64(s.Process), rank)
		if g := s.GPU; g != nil {
			known := func(m metric, v float64) {
				if v != 0 {
					add(m, v, rank)
				}
			}
			known(gpuUsed, float64(g.MemoryUsed))
			known(gpuTotal, float64(g.MemoryTotal))
			known(clock, 1e6*float64(g.Clock))
			known(mostClock, 1e6*float64(g.MostClock))
			known(memoryClock, 1e6*float64(g.MemoryClock))
			known(power, g.Power)
			known(limit, g.PowerLimit)
			known(heat, float64(g.Temperature))
			add(busy, float64(g.Busy)/100, rank)
			for _, why := range g.Slowed {
				add(slowed, 1, rank, why)
			}
		}
	}
	for _, h := range now.Hosts {
		add(free, float64(h.Free), strconv.Itoa(h.Node), h.Name)
		add(total, float64(h.Total), strconv.Itoa(h.Node), h.Name)
	}
}
