package dashboard

import (
	"bufio"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// parseMetrics reads Prometheus' text format by its page: each name's HELP and TYPE once, and
// before its lines, which stand together; labels quoted; no line twice. It returns the values by
// name and labels.
func parseMetrics(text string) (map[string]float64, error) {
	if !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("the last line does not end")
	}
	values := map[string]float64{}
	helped, typed := map[string]bool{}, map[string]string{}
	family := ""
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			if helped[name] || help == "" || !metricName.MatchString(name) {
				return nil, fmt.Errorf("%q", line)
			}
			helped[name], family = true, name
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if typed[name] != "" || name != family || !slices.Contains([]string{"counter", "gauge"}, kind) ||
				(kind == "counter") != strings.HasSuffix(name, "_total") {
				return nil, fmt.Errorf("%q", line)
			}
			typed[name] = kind
			continue
		}
		end := strings.IndexAny(line, "{ ")
		if end < 0 || line[:end] != family || typed[family] == "" {
			return nil, fmt.Errorf("%q does not belong to %q", line, family)
		}
		labels, rest, err := parseLabels(line[end:])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		v, err := strconv.ParseFloat(strings.TrimPrefix(rest, " "), 64)
		if err != nil || !strings.HasPrefix(rest, " ") {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		key := family + fmt.Sprintf("%q", labels)
		if _, twice := values[key]; twice {
			return nil, fmt.Errorf("%q comes twice", line)
		}
		values[key] = v
	}
	return values, lines.Err()
}

// parseLabels reads {a="b",c="d"} at the head of a text. It returns a=b, c=d, in order of names,
// and the rest.
func parseLabels(text string) (labels []string, rest string, err error) {
	if !strings.HasPrefix(text, "{") {
		return nil, text, nil
	}
	all := map[string]string{}
	for text = text[1:]; ; {
		name, after, ok := strings.Cut(text, `="`)
		if _, twice := all[name]; !ok || twice || !labelName.MatchString(name) {
			return nil, "", fmt.Errorf("label %q", name)
		}
		var value strings.Builder
		i := 0
		for ; i < len(after) && after[i] != '"'; i++ {
			if after[i] != '\\' {
				value.WriteByte(after[i])
				continue
			}
			i++
			c, known := map[byte]byte{'\\': '\\', '"': '"', 'n': '\n'}[after[i]]
			if !known {
				return nil, "", fmt.Errorf("escape of %q", after[i])
			}
			value.WriteByte(c)
		}
		all[name] = value.String()
		if i+1 >= len(after) {
			return nil, "", fmt.Errorf("the value of %s does not end", name)
		}
		text = after[i+1:]
		if rest, ok := strings.CutPrefix(text, "}"); ok {
			for _, name := range slices.Sorted(maps.Keys(all)) {
				labels = append(labels, name+"="+all[name])
			}
			return labels, rest, nil
		}
		if text, ok = strings.CutPrefix(text, ","); !ok {
			return nil, "", fmt.Errorf("behind %s", name)
		}
	}
}

func TestMetrics(t *testing.T) {
	b, c := boardAt(3)
	b.Describe(Facts{Program: "a \"b\"\\c\nd\xff", Nodes: 2, Device: "host", Collectives: "mpi-host"})
	one := sampleAt(0, 1, 0.25, 0.5)
	one.Pools = []Pool{{"host memory", 5, 7}}
	one.GPU = &Reading{Name: "G", MemoryUsed: 3, MemoryTotal: 4, Clock: 1200, MostClock: 1980,
		MemoryClock: 3201, Power: 650.5, PowerLimit: 700, Temperature: 71, Busy: 97,
		Slowed: []string{"heat", "power limit"}}
	b.Hear(one)
	b.Hear(sampleAt(2, 1, 1, 2))
	b.Set("loss", 1.0/3)
	c.at = c.at.Add(1500000000)
	var text strings.Builder
	if err := b.Metrics(&text); err != nil {
		t.Fatal(err)
	}
	got, err := parseMetrics(text.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, &text)
	}
	for key, want := range map[string]float64{
		`lockstep_info["collectives=mpi-host" "device=host" "nodes=2" "program=a \"b\"\\c\nd�" "ranks=3"]`: 1,
		`lockstep_running_seconds[]`:                                1.5,
		`lockstep_program["name=loss"]`:                             1.0 / 3,
		`lockstep_rank_heard_seconds["rank=0"]`:                     1.5,
		`lockstep_seconds_total["phase=collectives" "rank=0"]`:      0.5,
		`lockstep_seconds_total["phase=compute" "rank=2"]`:          1,
		`lockstep_calls_total["phase=collectives" "rank=2"]`:        3,
		`lockstep_bytes_total["phase=collectives" "rank=2"]`:        12,
		`lockstep_region_seconds_total["rank=2" "region=backward"]`: 0.5,
		`lockstep_buffers_bytes["kind=host memory" "rank=0"]`:       5,
		`lockstep_buffers_peak_bytes["kind=host memory" "rank=0"]`:  7,
		`lockstep_process_resident_bytes["rank=2"]`:                 1002,
		`lockstep_node_memory_bytes["host=h1" "node=1"]`:            102,
		`lockstep_node_memory_available_bytes["host=h0" "node=0"]`:  10,
		`lockstep_gpu_memory_used_bytes["rank=0"]`:                  3,
		`lockstep_gpu_memory_bytes["rank=0"]`:                       4,
		`lockstep_gpu_clock_hertz["rank=0"]`:                        1.2e9,
		`lockstep_gpu_clock_max_hertz["rank=0"]`:                    1.98e9,
		`lockstep_gpu_memory_clock_hertz["rank=0"]`:                 3.201e9,
		`lockstep_gpu_power_watts["rank=0"]`:                        650.5,
		`lockstep_gpu_power_limit_watts["rank=0"]`:                  700,
		`lockstep_gpu_temperature_celsius["rank=0"]`:                71,
		`lockstep_gpu_busy_ratio["rank=0"]`:                         0.97,
		`lockstep_gpu_slowed["rank=0" "reason=heat"]`:               1,
		`lockstep_gpu_slowed["rank=0" "reason=power limit"]`:        1,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s is %v, %v, want %v", key, v, ok, want)
		}
	}
	for key := range got {
		if strings.Contains(key, `"rank=1"`) {
			t.Errorf("of a rank that was not heard: %s", key)
		}
	}
}
