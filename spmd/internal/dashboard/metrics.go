package dashboard

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// family is the metrics of one name.
type family struct {
	name, kind, help string
	lines            strings.Builder
}

type label struct{ name, value string }

func (f *family) add(value float64, labels ...label) {
	f.lines.WriteString(f.name)
	for i, l := range labels {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		f.lines.WriteByte(sep)
		f.lines.WriteString(l.name + `="` + escapeLabel.Replace(strings.ToValidUTF8(l.value, "\uFFFD")) + `"`)
	}
	if len(labels) > 0 {
		f.lines.WriteByte('}')
	}
	f.lines.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// Metrics writes all that is known of the ranks in Prometheus' text format. Source:
// prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
func (b *Board) Metrics(to io.Writer) error {
	var all []*family
	group := func(name, kind, help string) *family {
		f := &family{name: "lockstep_" + name, kind: kind, help: help}
		all = append(all, f)
		return f
	}
	info := group("info", "gauge", "The job.")
	up := group("running_seconds", "gauge", "Time since the start of the job.")
	program := group("program", "gauge", "What the program says of itself, such as its loss.")
	heard := group("rank_heard_seconds", "gauge", "Time since a rank was heard.")
	seconds := group("seconds_total", "counter", "Time of a rank in a phase, on the host and on its streams.")
	calls := group("calls_total", "counter", "Calls of a rank in a phase.")
	bytes := group("bytes_total", "counter", "Bytes of calls of a rank in a phase.")
	regions := group("region_seconds_total", "counter", "Time of a rank in a part of the program that has a name.")
	pool := group("buffers_bytes", "gauge", "Memory that buffers of a rank have.")
	peak := group("buffers_peak_bytes", "gauge", "The most memory that buffers of a rank had at one time.")
	process := group("process_resident_bytes", "gauge", "Memory of a rank's process.")
	free := group("node_memory_available_bytes", "gauge", "Memory that processes of a node can still have.")
	total := group("node_memory_bytes", "gauge", "Memory of a node.")
	gpuUsed := group("gpu_memory_used_bytes", "gauge", "Memory of a GPU in use, by all processes.")
	gpuTotal := group("gpu_memory_bytes", "gauge", "Memory of a GPU.")
	clock := group("gpu_clock_hertz", "gauge", "Clock of a GPU's multiprocessors.")
	mostClock := group("gpu_clock_max_hertz", "gauge", "The highest clock of a GPU's multiprocessors.")
	memoryClock := group("gpu_memory_clock_hertz", "gauge", "Clock of a GPU's memory.")
	power := group("gpu_power_watts", "gauge", "Power that a GPU takes.")
	limit := group("gpu_power_limit_watts", "gauge", "Power that a GPU may take.")
	heat := group("gpu_temperature_celsius", "gauge", "Temperature of a GPU.")
	busy := group("gpu_busy_ratio", "gauge", "Part of the time in which a kernel ran.")
	slowed := group("gpu_slowed", "gauge", "1 for each reason why the clock of a GPU is lower than it could be.")

	b.mu.Lock()
	now := b.now()
	info.add(1, label{"program", b.facts.Program}, label{"ranks", strconv.Itoa(b.facts.Ranks)},
		label{"nodes", strconv.Itoa(b.facts.Nodes)},
		label{"device", b.facts.Device}, label{"collectives", b.facts.Collectives})
	up.add(now.Sub(b.started).Seconds())
	for _, s := range b.numbers {
		program.add(s.last.value, label{"name", s.name})
	}
	for r := range b.ranks {
		s := b.ranks[r].last()
		if s == nil {
			continue
		}
		rank := label{"rank", strconv.Itoa(r)}
		heard.add(now.Sub(b.ranks[r].heard).Seconds(), rank)
		for _, p := range s.Phases {
			phase := label{"phase", p.Name}
			seconds.add(float64(p.Nanos)/1e9, rank, phase)
			calls.add(float64(p.Count), rank, phase)
			bytes.add(float64(p.Bytes), rank, phase)
		}
		for _, p := range s.Regions {
			regions.add(float64(p.Nanos)/1e9, rank, label{"region", p.Name})
		}
		for _, p := range s.Pools {
			pool.add(float64(p.Used), rank, label{"kind", p.Kind})
			peak.add(float64(p.Peak), rank, label{"kind", p.Kind})
		}
		process.add(float64(s.Process), rank)
		if g := s.GPU; g != nil {
			known := func(f *family, v float64) {
				if v != 0 {
					f.add(v, rank)
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
			busy.add(float64(g.Busy)/100, rank)
			for _, why := range g.Slowed {
				slowed.add(1, rank, label{"reason", why})
			}
		}
	}
	for _, h := range b.hosts() {
		node := []label{{"node", strconv.Itoa(h.Node)}, {"host", h.Name}}
		free.add(float64(h.Free), node...)
		total.add(float64(h.Total), node...)
	}
	b.mu.Unlock()
	for _, f := range all {
		if f.lines.Len() == 0 {
			continue
		}
		if _, err := fmt.Fprintf(to, "# HELP %s %s\n# TYPE %s %s\n%s", f.name, f.help, f.name, f.kind,
			f.lines.String()); err != nil {
			return err
		}
	}
	return nil
}
