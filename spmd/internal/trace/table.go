package trace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Fact is a line that an application adds to the summary.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Add adds a line to the summary, or gives one another value.
func (t *Tracer) Add(name, value string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.facts {
		if t.facts[i].Name == name {
			t.facts[i].Value = value
			return
		}
	}
	t.facts = append(t.facts, Fact{name, value})
}

// Facts are the lines that the application has added.
func (t *Tracer) Facts() []Fact {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.facts
}

// Text returns the table for people, without more than a screen has.
func (t *Table) Text(facts []Fact) string {
	var b strings.Builder
	ranks := "1 rank"
	if t.Ranks != 1 {
		ranks = fmt.Sprintf("%d ranks", t.Ranks)
	}
	which := "times are of the rank that took longest"
	if t.Ranks < t.Of {
		ranks, which = fmt.Sprintf("%d of %d ranks", t.Ranks, t.Of), which+"; the others could not be asked"
		if t.Ranks == 1 {
			ranks, which = fmt.Sprintf("rank %d of %d", t.first, t.Of), "the others could not be asked"
		}
	}
	fmt.Fprintf(&b, "summary of %s in %s; %s\n", ranks, Seconds(t.Seconds), which)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\tcount\tbytes\ttime\tshare\tmax/min\trank\tGB/s\tof best\t\n")
	const work, call, region = "  ", "  ", "  region "
	works := t.shortened()
	width := 28 // of the first column, whose texts begin at the left
	for _, part := range []struct {
		title string
		rows  []Row
	}{{"", t.Rows}, {work, works}, {call, t.Calls}, {region, t.Regions}} {
		for i := range part.rows {
			width = max(width, len(part.title)+utf8.RuneCountInString(part.rows[i].What))
		}
	}
	group := func(title string, rows []Row) {
		for i := range rows {
			r := &rows[i]
			count := "-"
			if r.What != itself {
				count = Count(r.Count)
			}
			if r.InGraph > 0 {
				count += fmt.Sprintf(" (%s in graphs)", Count(r.InGraph))
			}
			fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", title, pad(r.What, width-len(title)), count,
				orNone(r.Bytes > 0, Bytes(int64(r.Bytes))), orNone(r.Seconds > 0, Seconds(r.Seconds)),
				orNone(r.Seconds > 0, percent(r.Share)),
				orNone(r.Ratio > 0 && t.Ranks > 1, ratio(r.Ratio)), orNone(t.Ranks > 1, strconv.Itoa(r.Slowest)),
				orNone(r.Rate > 0, fmt.Sprintf("%.3g", r.Rate/1e9)),
				orNone(r.OfBest > 0, ofBestText(r.OfBest)))
		}
	}
	group("", t.Rows)
	group(work, works)
	group(call, t.Calls)
	group(region, t.Regions)
	_ = w.Flush() // a strings.Builder takes all
	if l := &t.Late; l.Compared > 0 {
		fmt.Fprintf(&b, "  late ranks: rank %d waited %s for the last to come; rank %d came last most often: in "+
			"%.0f %% of %s collectives\n",
			l.Waited, Seconds(l.Seconds), l.Last, 100*l.Share, Count(uint64(l.Compared)))
	}
	list := func(title string, parts []string) {
		if len(parts) > 0 {
			fmt.Fprintf(&b, "  %s: %s\n", title, strings.Join(parts, ", "))
		}
	}
	var parts []string
	for _, p := range t.Start {
		parts = append(parts, fmt.Sprintf("%s %s", p.Name, Seconds(p.Ms/1e3)))
	}
	list("start", parts)
	parts = nil
	for i, m := range t.Memory {
		at := ""
		if t.Ranks > 1 {
			at = fmt.Sprintf(" (rank %d)", t.On[i])
		}
		parts = append(parts, fmt.Sprintf("%s %s%s", m.Kind, Bytes(int64(m.Peak)), at))
	}
	list("memory at most", parts)
	for _, f := range facts {
		fmt.Fprintf(&b, "  %s: %s\n", f.Name, f.Value)
	}
	return b.String()
}

// mostWorks is how many kernels and products a table for people has.
const mostWorks = 20

// shortened returns the works that took longest, and one row for the others.
func (t *Table) shortened() []Row {
	if len(t.Works) <= mostWorks {
		return t.Works
	}
	rows := slices.Clone(t.Works[:mostWorks])
	rest := Row{What: fmt.Sprintf("%d others, of their slowest ranks", len(t.Works)-mostWorks+1)}
	for i := range t.Works[mostWorks-1:] {
		r := &t.Works[mostWorks-1+i]
		rest.Count, rest.Seconds, rest.Share, rest.InGraph = rest.Count+r.Count, rest.Seconds+r.Seconds,
			rest.Share+r.Share, rest.InGraph+r.InGraph
	}
	rows[mostWorks-1] = rest
	return rows
}

func percent(part float64) string {
	if part < 0.0995 {
		return fmt.Sprintf("%.1f %%", 100*part)
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}

// ofBestText returns a part as text. Less than a hundredth is no fault of the measurement.
func ofBestText(part float64) string {
	if part < 0.01 {
		return "<1 %"
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}

// pad makes texts of the first column equally wide.
func pad(s string, n int) string { return fmt.Sprintf("%-*s", n, s) }

func orNone(some bool, s string) string {
	if !some {
		return "-"
	}
	return s
}

// ratio is with as many digits as matter.
func ratio(x float64) string {
	switch {
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return Count(uint64(x + 0.5))
}

// Seconds returns a time in a unit that suits it.
func Seconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 1e-3:
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case s < 1000:
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

// Bytes returns a number of bytes in a unit that suits it.
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, i := float64(n)/(1<<10), 0
	for x >= 1000 && i < len(units)-1 {
		x, i = x/(1<<10), i+1
	}
	return fmt.Sprintf("%.3g %ciB", x, units[i])
}

// Count returns a number with its thousands apart.
func Count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
