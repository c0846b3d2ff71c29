package inspect

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep/internal/cli"
	"lockstep/internal/readable"
)

// mostWaits and mostWork are how many waits, and how many kernels and the like, are shown.
const mostWaits, mostWork = 10, 10

// TraceCommand is `launch trace`.
func TraceCommand() *cobra.Command {
	var waits, work int
	c := &cobra.Command{
		Use:   "trace FILE",
		Short: "Show what took longest in a file of --trace, the longest waits, and who caused them",
		Long: `Reads a file that a program has written with --trace FILE. Its first table has the kernels, products,
functions and copies that took longest, each on the rank on which it took longest.

Then come the longest waits of a rank for another: in a collective, for the rank that came last; in a Recv, for the
sender. Behind each stands what the late rank did meanwhile. The last table says how long each rank waited, and how
long others waited for it.

The file itself opens at ui.perfetto.dev, which shows it without sending it anywhere.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage{Err: errors.New("trace takes one file, such as: launch trace run.json")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readTrace(args[0])
			if err != nil {
				return cli.Usage{Err: err}
			}
			return f.show(cmd.OutOrStdout(), work, waits)
		},
	}
	c.Flags().IntVar(&waits, "waits", mostWaits, "how many waits to show")
	c.Flags().IntVar(&work, "work", mostWork, "lines of kernels, products, functions and copies to show")
	return c
}

// file is the contents of a trace file.
type file struct {
	Other struct {
		Ranks   int            `json:"ranks"`
		Missing []int          `json:"missing_ranks"`
		Dropped map[string]int `json:"dropped_events"`
	} `json:"otherData"`
	Events []event `json:"traceEvents"`
}

// event is an event of the file. Times are in microseconds.
type event struct {
	Ph   string  `json:"ph"`
	Rank int     `json:"pid"`
	Line int     `json:"tid"`
	At   float64 `json:"ts"`
	Took float64 `json:"dur"`
	Name string  `json:"name"`
	Cat  string  `json:"cat"`
	Args struct {
		Bytes    int64  `json:"bytes"`
		Comm     string `json:"comm"`
		Seq      int64  `json:"seq"`
		In       *int   `json:"rank"` // its rank in the communicator, if it differs from Rank
		To       *int   `json:"to"`
		From     *int   `json:"from"`
		Sent     int64  `json:"sent"`
		Received int64  `json:"received"`
		Replays  int    `json:"replays"` // of a graph, for which the event stands; 0 outside of graphs
	} `json:"args"`
}

func (e *event) end() float64 { return e.At + e.Took }

// in returns the rank in the communicator.
func (e *event) in() int {
	if e.Args.In != nil {
		return *e.Args.In
	}
	return e.Rank
}

// readTrace reads a file, which may be compressed.
func readTrace(name string) (*file, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := bufio.NewReaderSize(f, 1<<16)
	var r io.Reader = b
	if head, err := b.Peek(2); err == nil && head[0] == 0x1f && head[1] == 0x8b {
		if r, err = gzip.NewReader(b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	t := &file{}
	if err := json.NewDecoder(r).Decode(t); err != nil || t.Other.Ranks == 0 {
		return nil, fmt.Errorf("%s is no file that a program has written with --trace", name)
	}
	return t, nil
}

// wait is a rank that waited for another.
type wait struct {
	long  float64 // microseconds
	who   *event
	cause *event
}

// call is a collective, or a message.
type call struct {
	comm     string
	from, to int // of a message; -1 of a collective
	seq      int64
}

// waits finds all waits, the longest first.
func (f *file) waits() []wait {
	collectives, sends := map[call][]*event{}, map[call]*event{}
	for i := range f.Events {
		e := &f.Events[i]
		if e.Ph != "X" || e.Args.Comm == "" {
			continue
		}
		if e.Args.Seq > 0 {
			k := call{e.Args.Comm, -1, -1, e.Args.Seq}
			collectives[k] = append(collectives[k], e)
		}
		if e.Args.To != nil {
			sends[call{e.Args.Comm, e.in(), *e.Args.To, e.Args.Sent}] = e
		}
	}
	var list []wait
	add := func(who, cause *event) {
		if took := min(cause.At, who.end()) - who.At; took > 0 && who.Rank != cause.Rank {
			list = append(list, wait{took, who, cause})
		}
	}
	for _, ends := range collectives {
		last := slices.MaxFunc(ends, func(a, b *event) int { return cmp.Compare(a.At, b.At) })
		for _, e := range ends {
			add(e, last)
		}
	}
	for i := range f.Events {
		e := &f.Events[i]
		if e.Ph != "X" || e.Args.From == nil {
			continue
		}
		if s := sends[call{e.Args.Comm, *e.Args.From, e.in(), e.Args.Received}]; s != nil {
			add(e, s)
		}
	}
	slices.SortFunc(list, func(a, b wait) int {
		return cmp.Or(cmp.Compare(b.long, a.long), cmp.Compare(a.who.At, b.who.At), cmp.Compare(a.who.Rank, b.who.Rank))
	})
	return list
}

// meanwhile returns what the late rank did while the other waited: what took most of that time, and
// the region that it was in.
func (f *file) meanwhile(w *wait) string {
	type part struct {
		name string
		took float64
	}
	var did, region part
	took := map[string]float64{}
	for i := range f.Events {
		e := &f.Events[i]
		if e.Ph != "X" || e.Rank != w.cause.Rank || e == w.cause {
			continue
		}
		shared := min(e.end(), w.cause.At) - max(e.At, w.who.At)
		switch {
		case shared <= 0:
		case e.Cat == "region":
			if region.name == "" || e.Took < region.took { // the innermost
				region = part{e.Name, e.Took}
			}
		default:
			took[e.Name] += shared
		}
	}
	for name, t := range took {
		if t > did.took || t == did.took && name < did.name {
			did = part{name, t}
		}
	}
	text := "its program"
	if did.took > w.long/10 {
		text = did.name
	}
	if region.name != "" {
		text += ", in region " + region.name
	}
	return text
}

// work is the work of a rank under one name.
type work struct {
	name    string
	rank    int
	took    float64 // microseconds
	longest float64
	count   int
}

// works finds all work, each on the rank on which it took longest, the longest first.
func (f *file) works() []work {
	type key struct {
		name string
		rank int
	}
	all := map[key]*work{}
	for i := range f.Events {
		e := &f.Events[i]
		if e.Ph != "X" || e.Cat != "compute" && e.Cat != "copy" {
			continue
		}
		w := all[key{e.Name, e.Rank}]
		if w == nil {
			w = &work{name: e.Name, rank: e.Rank}
			all[key{e.Name, e.Rank}] = w
		}
		stands := max(e.Args.Replays, 1)
		w.count, w.took, w.longest = w.count+stands, w.took+float64(stands)*e.Took, max(w.longest, e.Took)
	}
	most := map[string]*work{}
	for _, w := range all {
		if o := most[w.name]; o == nil || w.took > o.took || w.took == o.took && w.rank < o.rank {
			most[w.name] = w
		}
	}
	var list []work
	for _, w := range most {
		list = append(list, *w)
	}
	slices.SortFunc(list, func(a, b work) int {
		return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.name, b.name))
	})
	return list
}

// showWork prints what took longest.
func (f *file) showWork(t *tabwriter.Writer, n int) {
	list := f.works()
	if len(list) == 0 || n < 1 {
		return
	}
	fmt.Fprintln(t, "worked\trank\tcount\tlongest\tin")
	for i := range list[:min(n, len(list))] {
		w := &list[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", micros(w.took), w.rank, w.count, micros(w.longest),
			readable.Text(w.name))
	}
	fmt.Fprintln(t)
}

// show prints what took longest, the longest waits, and how long each rank waited and
// made others wait.
func (f *file) show(out io.Writer, works, n int) error {
	list := f.waits()
	for _, rank := range f.Other.Missing {
		fmt.Fprintf(out, "rank %d: nothing of it is in the file, since it could not be asked\n", rank)
	}
	for _, rank := range slices.Sorted(maps.Keys(f.Other.Dropped)) {
		fmt.Fprintf(out, "rank %s: %d events were dropped, and are not looked at\n",
			readable.Text(rank), f.Other.Dropped[rank])
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	f.showWork(t, works)
	if len(list) == 0 {
		fmt.Fprintf(t, "no rank waited for another, of %d\n", f.Other.Ranks)
		return t.Flush()
	}
	fmt.Fprintln(t, "waited\trank\tin\tat\tfor rank\twhich was in")
	for i := range list[:min(max(n, 0), len(list))] {
		w := &list[i]
		e := w.who
		what := e.Name
		if e.Args.Bytes > 0 {
			what += fmt.Sprintf(" of %d bytes", e.Args.Bytes)
		}
		what += " on " + e.Args.Comm
		if e.Args.Seq > 0 {
			what += fmt.Sprintf(", number %d", e.Args.Seq)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%.6f s\t%d\t%s\n",
			micros(w.long), e.Rank, readable.Text(what), e.At/1e6, w.cause.Rank, readable.Text(f.meanwhile(w)))
	}
	waited, caused := map[int]float64{}, map[int]float64{}
	for i := range list {
		waited[list[i].who.Rank] += list[i].long
		caused[list[i].cause.Rank] += list[i].long
	}
	fmt.Fprintln(t, "\nrank\twaited for others\tothers waited for it")
	for r := range f.Other.Ranks {
		fmt.Fprintf(t, "%d\t%s\t%s\n", r, micros(waited[r]), micros(caused[r]))
	}
	return t.Flush()
}

// micros returns a time in a suitable unit.
func micros(us float64) string {
	switch {
	case us < 1e3:
		return fmt.Sprintf("%.3g us", us)
	case us < 1e6:
		return fmt.Sprintf("%.3g ms", us/1e3)
	}
	return fmt.Sprintf("%.3g s", us/1e6)
}
