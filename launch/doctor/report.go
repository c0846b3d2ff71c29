package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Result is all that there is to show.
type Result struct {
	Ranks      []Facts   `json:"ranks"`
	Findings   []Finding `json:"findings"`
	NotChecked []string  `json:"not_checked,omitempty"`
}

// Status returns the exit status that goes with it: 1 with a failure, else 0.
func (r *Result) Status() int {
	if Failed(r.Findings) {
		return 1
	}
	return 0
}

// WriteJSON writes the result as one line of JSON.
func (r *Result) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// facet is a fact in words, a line above the table or a column in it.
type facet struct {
	name string
	of   func(f *Facts) string // "" if there is nothing to say
}

// facets in the order in which they are shown.
func (r *Result) facets() []facet {
	takes := map[*Facts]string{}
	for lo := range r.Ranks {
		if f := &r.Ranks[lo]; f.LocalRank == 0 {
			var node []Facts
			var of []*Facts
			for i := range r.Ranks {
				if r.Ranks[i].Node == f.Node {
					node, of = append(node, r.Ranks[i]), append(of, &r.Ranks[i])
				}
			}
			for i, uuid := range Takes(node) {
				takes[of[i]] = uuid
			}
		}
	}
	library := func(name string) facet {
		return facet{name, func(f *Facts) string {
			l, ok := f.Libraries[name]
			switch {
			case !ok:
				return ""
			case l.Err != "":
				return "missing"
			}
			return strings.TrimSpace(l.Version + " " + l.Path)
		}}
	}
	ofSeveral := func(of func(f *Facts) string) func(f *Facts) string {
		if len(r.Ranks) > 1 {
			return of
		}
		return func(*Facts) string { return "" }
	}
	all := []facet{
		{"host", func(f *Facts) string { return f.Host }},
		{"node", ofSeveral(func(f *Facts) string { return strconv.Itoa(f.Node) })},
		{"local", ofSeveral(func(f *Facts) string { return strconv.Itoa(f.LocalRank) })},
		{"launcher", func(f *Facts) string {
			if f.Launcher.Source == "" {
				return "none"
			}
			return fmt.Sprintf("%s (%s=%d)", f.Launcher.Name, f.Launcher.Source, f.Launcher.Size)
		}},
		{"MPI", func(f *Facts) string {
			if f.MPI == nil {
				return ""
			}
			return fmt.Sprintf("%s, %s, threads %s", f.MPI.Version, count(f.MPI.Size, "rank"), f.MPI.Thread)
		}},
		{"MPI + GPU", func(f *Facts) string {
			switch {
			case f.MPI == nil || f.MPI.CUDA == nil || len(f.GPU.Devices) == 0:
				return ""
			case f.MPI.CUDA.Yes:
				return "CUDA-aware: " + f.MPI.CUDA.Reason
			}
			return "not CUDA-aware: " + f.MPI.CUDA.Reason
		}},
		{"arch", func(f *Facts) string { return f.Arch }},
		{"launch", func(f *Facts) string { return short(f.Launch.SHA256) + " " + f.Launch.Path }},
		{"program", func(f *Facts) string {
			if f.Program == nil {
				return ""
			}
			if f.Program.Err != "" {
				return f.Program.Path + ": " + f.Program.Err
			}
			return strings.Join(strings.Fields(short(f.Program.SHA256)+" "+f.Program.Path+" "+
				f.Program.Arch+" "+f.Program.MPI), " ")
		}},
		{"cores", func(f *Facts) string { return fmt.Sprintf("%s of %d", spans(f.Cores), f.NodeCores) }},
		{"NUMA", func(f *Facts) string { return spans(f.NUMA) }},
		{"GPUs", func(f *Facts) string {
			if len(f.GPU.Devices) == 0 {
				return "none: " + f.GPU.Err
			}
			var ids []string
			for _, d := range f.GPU.Devices {
				ids = append(ids, d.UUID[:min(12, len(d.UUID))])
			}
			return fmt.Sprintf("%d %s: %s", len(ids), f.GPU.Devices[0].Name, strings.Join(ids, " "))
		}},
		{"takes", func(f *Facts) string {
			i := slices.IndexFunc(f.GPU.Devices, func(d Device) bool { return d.UUID == takes[f] })
			if i < 0 {
				return ""
			}
			text := fmt.Sprintf("GPU %d", i)
			if d := f.GPU.Devices[i]; d.NUMA >= 0 {
				text += fmt.Sprintf(" (NUMA %d)", d.NUMA)
			}
			return text
		}},
		{"driver", func(f *Facts) string {
			if f.GPU.CUDA == "" {
				return ""
			}
			return strings.TrimSpace(f.GPU.Driver + " CUDA " + f.GPU.CUDA)
		}},
		{"links", func(f *Facts) string {
			var text []string
			if len(f.GPU.Devices) > 0 {
				if n := f.GPU.Devices[0].NVLinks; n > 0 {
					text = append(text, fmt.Sprintf("%d NVLinks", n))
				}
				switch f.GPU.Peers {
				case "":
				case "all", "none":
					text = append(text, "peer access: "+f.GPU.Peers)
				default:
					text = append(text, "peer access: all but "+f.GPU.Peers)
				}
			}
			return strings.TrimSpace(strings.Join(text, ", "))
		}},
		library("NCCL"), library("NVRTC"), library("cuBLAS"), library("cuBLASLt"), library("cuDNN"),
		library("OpenBLAS"), {"/dev/shm", func(f *Facts) string {
			if f.ShmFree < 0 {
				return "missing"
			}
			return size(f.ShmFree) + " free"
		}},
		{"limits", func(f *Facts) string {
			files := "unlimited"
			if f.NoFile >= 0 {
				files = strconv.FormatInt(f.NoFile, 10)
			}
			return fmt.Sprintf("memlock %s, files %s, stack %s", size(f.Memlock), files, size(f.Stack))
		}},
		{"RDMA", func(f *Facts) string { return strings.Join(f.RDMA, " ") }},
		{"network", func(f *Facts) string {
			var text []string
			for _, i := range f.Interfaces {
				text = append(text, i.Name+" "+strings.Join(i.Addrs, " "))
			}
			return strings.Join(text, ", ")
		}},
		{"clock", func(f *Facts) string {
			if f.Skew == nil || !slices.ContainsFunc(r.Ranks, func(o Facts) bool { return o.Node > 0 }) {
				return ""
			}
			return fmt.Sprintf("%+.1f ms", float64(*f.Skew)/float64(time.Millisecond))
		}},
	}
	var names []string
	for _, f := range r.Ranks {
		for _, s := range f.Settings {
			if name, _, _ := strings.Cut(s, "="); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		all = append(all, facet{name, func(f *Facts) string { return f.setting(name) }})
	}
	return all
}

// Sizes of the page.
const (
	nameWidth = 10
	maxCell   = 64
)

// Write shows the result in lines of at most width characters, if words allow: the facts that are
// the same on all ranks, a table of those that differ, the findings.
func (r *Result) Write(w io.Writer, width int) error {
	var b strings.Builder
	columns := []facet{{"rank", func(f *Facts) string { return strconv.Itoa(f.Rank()) }}}
	for _, c := range r.facets() {
		first := c.of(&r.Ranks[0])
		same := true
		for i := range r.Ranks {
			same = same && c.of(&r.Ranks[i]) == first
		}
		switch {
		case !same:
			columns = append(columns, c)
		case first != "":
			wrap(&b, fmt.Sprintf("%-*s ", nameWidth, c.name), first, width)
		}
	}
	if len(r.Ranks) > 1 {
		b.WriteString("\n")
		r.table(&b, columns, width)
	}
	b.WriteString("\n")
	for _, f := range r.Findings {
		wrap(&b, f.Level+" ", fmt.Sprintf("%s: %s: %s", f.Where, f.What, f.Do), 0)
	}
	for _, n := range r.NotChecked {
		wrap(&b, "not checked: ", n, 0)
	}
	fails := 0
	for _, f := range r.Findings {
		if f.Level == Fail {
			fails++
		}
	}
	switch warns := len(r.Findings) - fails; {
	case len(r.Findings) == 0 && len(r.NotChecked) == 0:
		b.WriteString("no problem found\n")
	default:
		fmt.Fprintf(&b, "%s, %s\n", count(fails, "failure"), count(warns, "warning"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// wrap writes text behind a head, in lines that fit width and are indented as far as the head;
// width 0 keeps one line.
func wrap(b *strings.Builder, head, text string, width int) {
	b.WriteString(head)
	at := utf8.RuneCountInString(head)
	indent := at
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		if i > 0 {
			if width > 0 && at+1+n > width {
				b.WriteString("\n" + strings.Repeat(" ", indent))
				at = indent
			} else {
				b.WriteString(" ")
				at++
			}
		}
		b.WriteString(word)
		at += n
	}
	b.WriteString("\n")
}

// table writes a line for each rank; columns that do not fit follow in a further table.
func (r *Result) table(b *strings.Builder, columns []facet, width int) {
	cell := func(c facet, i int) string {
		text := []rune(c.of(&r.Ranks[i]))
		if len(text) > maxCell {
			return string(text[:maxCell-3]) + "..."
		}
		return string(text)
	}
	widths := make([]int, len(columns))
	for k, c := range columns {
		widths[k] = utf8.RuneCountInString(c.name)
		for i := range r.Ranks {
			widths[k] = max(widths[k], utf8.RuneCountInString(cell(c, i)))
		}
	}
	for rest := 1; rest < len(columns) || rest == 1; {
		shown := []int{0}
		at := widths[0]
		for ; rest < len(columns) && (len(shown) == 1 || at+2+widths[rest] <= width); rest++ {
			shown, at = append(shown, rest), at+2+widths[rest]
		}
		line := func(text func(k int) string) {
			var l strings.Builder
			for n, k := range shown {
				if n > 0 {
					l.WriteString("  ")
				}
				t := text(k)
				l.WriteString(t + strings.Repeat(" ", widths[k]-utf8.RuneCountInString(t)))
			}
			b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
		}
		line(func(k int) string { return columns[k].name })
		for i := range r.Ranks {
			line(func(k int) string { return cell(columns[k], i) })
		}
		if rest >= len(columns) {
			return
		}
		b.WriteString("\n")
	}
}
