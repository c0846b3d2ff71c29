package dashboard

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"lockstep/spmd/internal/dashboard"
)

// What Prometheus reads of /metrics, by its own parser.
func TestMetrics(t *testing.T) {
	at := time.Unix(1000, 0)
	b := dashboard.NewBoard(3, at, func() time.Time { return at })
	b.Describe(dashboard.Facts{Program: "a \"b\"\\c\nd\xff", Nodes: 2, Device: "host", Collectives: "mpi-host"})
	phases := []dashboard.Phase{{Name: "compute", Count: 1, Nanos: 1e9},
		{Name: "collectives", Count: 3, Bytes: 12, Nanos: 5e8}}
	b.Hear(&dashboard.Sample{Rank: 0, Host: "h0", At: 1, Free: 10, Total: 100, Process: 1000, Phases: phases,
		Pools: []dashboard.Pool{{Kind: "host memory", Used: 5, Peak: 7}},
		GPU: &dashboard.Reading{Name: "G", MemoryUsed: 3, MemoryTotal: 4, Clock: 1200, MostClock: 1980,
			MemoryClock: 3201, Power: 650.5, PowerLimit: 700, Temperature: 71, Busy: 97,
			Slowed: []string{"heat", "power limit"}}})
	b.Hear(&dashboard.Sample{Rank: 2, Node: 1, Host: "h1", At: 1, Total: 102, Process: 1002, Phases: phases,
		Regions: []dashboard.Phase{{Name: "backward", Count: 1, Nanos: 5e8}}})
	b.Set("loss", 1.0/3)
	at = at.Add(1500 * time.Millisecond)
	_, text := ask(t, "GET", served(t, b).url+"metrics")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := map[string]float64{}
	for name, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			got[fmt.Sprintf("%s%q", strings.TrimPrefix(name, "lockstep_"), labels)] =
				m.Gauge.GetValue() + m.Counter.GetValue()
		}
	}
	for key, want := range map[string]float64{
		`info["collectives=mpi-host" "device=host" "nodes=2" "program=a \"b\"\\c\nd�" "ranks=3"]`: 1,
		`running_seconds[]`:                                1.5,
		`program["name=loss"]`:                             1.0 / 3,
		`rank_heard_seconds["rank=0"]`:                     1.5,
		`seconds_total["phase=collectives" "rank=0"]`:      0.5,
		`seconds_total["phase=compute" "rank=2"]`:          1,
		`calls_total["phase=collectives" "rank=2"]`:        3,
		`bytes_total["phase=collectives" "rank=2"]`:        12,
		`region_seconds_total["rank=2" "region=backward"]`: 0.5,
		`buffers_bytes["kind=host memory" "rank=0"]`:       5,
		`buffers_peak_bytes["kind=host memory" "rank=0"]`:  7,
		`process_resident_bytes["rank=2"]`:                 1002,
		`node_memory_bytes["host=h1" "node=1"]`:            102,
		`node_memory_available_bytes["host=h0" "node=0"]`:  10,
		`gpu_memory_used_bytes["rank=0"]`:                  3,
		`gpu_memory_bytes["rank=0"]`:                       4,
		`gpu_clock_hertz["rank=0"]`:                        1.2e9,
		`gpu_clock_max_hertz["rank=0"]`:                    1.98e9,
		`gpu_memory_clock_hertz["rank=0"]`:                 3.201e9,
		`gpu_power_watts["rank=0"]`:                        650.5,
		`gpu_power_limit_watts["rank=0"]`:                  700,
		`gpu_temperature_celsius["rank=0"]`:                71,
		`gpu_busy_ratio["rank=0"]`:                         0.97,
		`gpu_slowed["rank=0" "reason=heat"]`:               1,
		`gpu_slowed["rank=0" "reason=power limit"]`:        1,
	} {
		if v, ok := got[key]; !ok || math.Abs(v-want) > 1e-9*want {
			t.Errorf("%s is %v, %v, want %v\n%s", key, v, ok, want, text)
		}
	}
	for key := range got {
		if strings.Contains(key, `"rank=1"`) {
			t.Errorf("of a rank that was not heard: %s", key)
		}
	}
}
