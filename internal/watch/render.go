package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// shownLines bounds what Render returns: two screens.
const shownLines = 100

// Render returns a report as text: those first that died, are silent or did not answer, then the others. Ranks of which
// the same is to be said share a paragraph, and long ones are cut, so that a report fits on two screens.
func Render(states []RankState) string {
	type group struct {
		weight int
		ranks  []RankState
		body   []string
	}
	var groups []*group
	byText := map[string]*group{}
	count := map[string]int{}
	for _, s := range states {
		weight, what := verdict(s)
		count[what]++
		body := bodyOf(s)
		key := what + "\n" + strings.Join(body, "\n")
		g := byText[key]
		if g == nil {
			g = &group{weight: weight, body: body}
			byText[key] = g
			groups = append(groups, g)
		}
		g.ranks = append(g.ranks, s)
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return a.weight - b.weight })

	var b strings.Builder
	fmt.Fprintf(&b, "%d %s:", len(states), plural(len(states), "rank"))
	sep := " "
	for _, what := range verdicts {
		if count[what] > 0 {
			fmt.Fprintf(&b, "%s%d %s", sep, count[what], what)
			sep = ", "
		}
	}
	b.WriteByte('\n')
	left := shownLines - 1
	for i, g := range groups {
		rest := len(groups) - i - 1
		if left <= 1 && rest > 0 {
			n := 0
			for _, g := range groups[i:] {
				n += len(g.ranks)
			}
			fmt.Fprintf(&b, "and %d more %s\n", n, plural(n, "rank"))
			break
		}
		_, what := verdict(g.ranks[0])
		fmt.Fprintf(&b, "%s: %s\n", whoAre(g.ranks), what)
		left--
		show := max(0, min(len(g.body), left/(rest+1)))
		if show < len(g.body) && show > 0 {
			show-- // for the line that says so
		}
		for _, line := range g.body[:show] {
			b.WriteString("    " + line + "\n")
		}
		left -= show
		if show < len(g.body) && left > rest {
			fmt.Fprintf(&b, "    ... %d more %s\n", len(g.body)-show, plural(len(g.body)-show, "line"))
			left--
		}
	}
	return b.String()
}

var verdicts = []string{"died", "silent", "without answer", "left", "answered"}

// verdict returns what a report says of a rank in a word, and where that stands among verdicts.
func verdict(s RankState) (int, string) {
	i := 4
	switch {
	case s.Died:
		i = 0
	case s.Silent:
		i = 1
	case s.State != nil:
	case s.Left:
		i = 3
	default:
		i = 2
	}
	return i, verdicts[i]
}

func bodyOf(s RankState) []string {
	var body []string
	if s.ProcState != "" {
		body = append(body, "process: "+clean(s.ProcState))
	}
	if s.Note != "" {
		body = append(body, "note: "+clean(s.Note))
	}
	if s.State != nil {
		d := json.NewDecoder(bytes.NewReader(s.State))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return append(body, "state: "+clean(err.Error()))
		}
		body = append(body, lines("", v, 0)...)
	}
	return body
}

// lines returns a JSON value as "name: value" lines. What holds more than one line is indented below its name, and what
// is nested too deep stays JSON.
func lines(name string, v any, depth int) []string {
	if depth > 8 {
		if text, err := json.Marshal(v); err == nil {
			v = string(text)
		}
	}
	var sub []string
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for k := range v {
			names = append(names, k)
		}
		slices.Sort(names)
		for _, k := range names {
			sub = append(sub, lines(clean(k), v[k], depth+1)...)
		}
	case []any:
		for _, e := range v {
			sub = append(sub, lines("-", e, depth+1)...)
		}
	case string:
		for line := range strings.Lines(v) {
			sub = append(sub, clean(strings.TrimRight(line, "\r\n")))
		}
	default:
		sub = []string{clean(fmt.Sprint(v))}
	}
	_, nested := v.(map[string]any)
	switch {
	case name == "":
		return sub
	case len(sub) == 0:
		return []string{name + ":"}
	case len(sub) == 1 && !nested && name != "-":
		return []string{name + ": " + sub[0]}
	case name == "-":
		sub[0] = "- " + sub[0]
		for i := range sub[1:] {
			sub[i+1] = "  " + sub[i+1]
		}
		return sub
	}
	out := []string{name + ":"}
	for _, s := range sub {
		out = append(out, "  "+s)
	}
	return out
}

// clean makes s harmless to a terminal, and short enough for one line.
func clean(s string) string {
	const width = 200
	s = strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > width {
		return string(r[:width]) + " ..."
	}
	return s
}

// whoAre names ranks: "rank 3 (node 0, host a, pid 71)", or "ranks 0-2, 5 (nodes 0, 1)".
func whoAre(ranks []RankState) string {
	if len(ranks) == 1 {
		s := ranks[0]
		if s.PID == 0 {
			return fmt.Sprintf("rank %d", s.Rank)
		}
		return fmt.Sprintf("rank %d (node %d, host %s, pid %d)", s.Rank, s.Node, clean(s.Host), s.PID)
	}
	var is, nodes []int
	for _, s := range ranks {
		is = append(is, s.Rank)
		if s.PID != 0 {
			nodes = append(nodes, s.Node)
		}
	}
	if len(nodes) < len(is) {
		return "ranks " + Ranges(is, ", ")
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	return fmt.Sprintf("ranks %s (%s %s)", Ranges(is, ", "), plural(len(nodes), "node"), Ranges(nodes, ", "))
}

// hostsOf names ranks by their hosts: "ranks 2-3 on h1, rank 5 on h2".
func hostsOf(ranks []Hello) string {
	const shown = 4 // hosts
	var hosts []string
	on := map[string][]int{}
	for _, r := range ranks {
		if on[r.Host] == nil {
			hosts = append(hosts, r.Host)
		}
		on[r.Host] = append(on[r.Host], r.Rank)
	}
	var parts []string
	for _, host := range hosts[:min(shown, len(hosts))] {
		is := on[host]
		parts = append(parts, fmt.Sprintf("%s %s on %s", plural(len(is), "rank"), Ranges(is, ", "), clean(host)))
	}
	if more := len(hosts) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("those on %d more %s", more, plural(more, "host")))
	}
	return strings.Join(parts, ", ")
}

// Ranges returns numbers in ascending order, with a separator such as ", ": "0-2, 5". It sorts v.
func Ranges(v []int, separator string) string {
	slices.Sort(v)
	var parts []string
	for i := 0; i < len(v); {
		j := i
		for j+1 < len(v) && v[j+1] == v[j]+1 {
			j++
		}
		part := strconv.Itoa(v[i])
		if j > i {
			part += "-" + strconv.Itoa(v[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, separator)
}

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}
