package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// Label names a line in a legend.
func (m Measured) Label() string {
	name := m.Side
	for _, f := range []struct {
		on   bool
		name string
	}{
		{m.Symmetric && m.Side == Ours, "symmetric"}, {m.saysInPlace(), "in place"},
		{m.Stream && !m.Graph && m.Side == Ours, "on a stream"}, {m.Graph, "in a graph"},
	} {
		if f.on {
			name += ", " + f.name
		}
	}
	return name
}

// saysInPlace reports whether the name says that the result overwrote the input. It is not said of
// operations that always do so.
func (m *Measured) saysInPlace() bool {
	op, err := OperationOf(m.Op)
	return m.InPlace && (err != nil || !op.always())
}

// Series returns what the lines of one application, side and way of calling share, on any
// number of ranks.
func (m *Measured) Series() Kind {
	return Kind{App: m.App, Side: m.Side, Scaling: m.Scaling, Graph: m.Graph}
}

// What names a measurement in words, without its side and ranks.
func (m Measured) What() string {
	var b strings.Builder
	switch {
	case m.Op != "":
		fmt.Fprintf(&b, "%s of %s, %s", m.Op, SizeText(m.Bytes), m.Dtype)
	case m.App == "reduce":
		fmt.Fprintf(&b, "reduce of %d %s", m.Elements, m.Dtype)
	case m.App == "matvec":
		fmt.Fprintf(&b, "matvec of %d x %d %s", m.Rows, m.Cols, m.Dtype)
	case m.App == "stencil":
		fmt.Fprintf(&b, "stencil of %d %s", m.Elements, m.Dtype)
	default:
		b.WriteString(m.App)
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{m.saysInPlace(), "in place"}, {m.Symmetric, "symmetric"}, {m.Graph, "in a graph"},
		{m.Stream && !m.Graph, "on a stream"},
	} {
		if f.on {
			b.WriteString(", " + f.name)
		}
	}
	if m.Scaling != "" {
		fmt.Fprintf(&b, ", %s scaling", m.Scaling)
	}
	return b.String()
}

// Measured is one line of measurements, of this framework or of a peer. The fields of Kind are the
// key by which the lines of several rounds and sides find each other.
type Measured struct {
	Kind
	Nodes       int    `json:"nodes,omitempty"`
	Device      string `json:"device"`
	Collectives string `json:"collectives,omitempty"`
	Calls       int    `json:"calls,omitempty"` // back to back in one timed iteration, in any number of graphs
	Rounds      int    `json:"rounds"`          // that the times are medians of
	telemetry.Stats
	GBps      float64   `json:"gbps"`
	BusGBps   float64   `json:"bus_gbps,omitempty"`
	TokS      float64   `json:"tok_s,omitempty"`
	Wrong     *int      `json:"wrong,omitempty"` // elements, of all ranks; nil if unchecked
	OK        bool      `json:"ok"`
	SamplesUS []float64 `json:"samples_us,omitempty"` // every time, where a side tells them
	// Slow are the times above 10 medians, with their causes, as reduce reports them.
	Slow []json.RawMessage `json:"slow,omitempty"`
	// compared with the fewest ranks
	SpeedUp    float64 `json:"speed_up,omitempty"`
	Efficiency float64 `json:"efficiency,omitempty"`
	// the cost of a rank, if it is measured
	USPerRank float64 `json:"us_per_rank,omitempty"`
	StartupMS float64 `json:"startup_ms,omitempty"`
	PeakMiB   float64 `json:"peak_mib,omitempty"`

	Machine string `json:"machine,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"`
}

// Kind says what was measured.
type Kind struct {
	App       string `json:"app"` // sweep, reduce, matvec, stencil, train or cost
	Side      string `json:"side"`
	Op        string `json:"op,omitempty"`
	Scaling   string `json:"scaling,omitempty"` // strong or weak
	Ranks     int    `json:"ranks"`
	Dtype     string `json:"dtype,omitempty"`
	Elements  int    `json:"elements,omitempty"`
	Rows      int    `json:"rows,omitempty"`
	Cols      int    `json:"cols,omitempty"`
	Bytes     int    `json:"bytes,omitempty"`
	Stream    bool   `json:"stream,omitempty"` // calls are enqueued, not finished one by one
	Graph     bool   `json:"graph"`
	Symmetric bool   `json:"symmetric,omitempty"`
	InPlace   bool   `json:"in_place,omitempty"`
}

// variant is how a collective is called.
type variant struct{ stream, graph, symmetric, inPlace bool }

// times is how often it is called.
type times struct{ Iters, Warmup int }

// Flags are the flags that the runner passes on to its ranks and to peers.
type Flags struct {
	times
	Graph, Symmetric, InPlace Choice
	Stream                    string
}

// rankSymmetric is the ranks' name for --symmetric, which is a flag of every program.
const rankSymmetric = "symmetric-memory"

// Register adds the flags to fs.
func (f *Flags) Register(fs *pflag.FlagSet, symmetric string) {
	f.Graph, f.Symmetric, f.InPlace = Choice{false}, Choice{false}, Choice{false}
	fs.IntVar(&f.Iters, "iters", HostIters,
		fmt.Sprintf("timed iterations of a size (on GPUs %d unless given)", GPUIters))
	fs.IntVar(&f.Warmup, "warmup", HostWarmup,
		fmt.Sprintf("iterations before timing (on GPUs %d unless given)", GPUWarmup))
	fs.Var(&f.Graph, "graph", "whether the calls are captured once and replayed")
	fs.Var(&f.Symmetric, symmetric, "whether buffers come from symmetric memory")
	fs.Var(&f.InPlace, "in-place", "whether results overwrite the input; broadcast always does")
	for _, name := range []string{"graph", symmetric, "in-place"} {
		fs.Lookup(name).NoOptDefVal = "on"
	}
	fs.StringVar(&f.Stream, "stream", "auto",
		"whether calls are enqueued on a stream: auto, on or off; auto is on for GPUs, and off, each call finished "+
			"before the next, on the host")
}

// Check refuses numbers that are out of range.
func (f *Flags) Check() error {
	switch {
	case f.Iters < 1:
		return fmt.Errorf("--iters %d: must be at least 1", f.Iters)
	case f.Warmup < 0:
		return fmt.Errorf("--warmup %d: must not be negative", f.Warmup)
	case !slices.Contains([]string{"auto", "on", "off"}, f.Stream):
		return fmt.Errorf("--stream %s: want auto, on or off", f.Stream)
	}
	return nil
}

// Args returns the flags for the ranks.
func (f *Flags) Args() []string {
	return []string{fmt.Sprintf("--iters=%d", f.Iters), fmt.Sprintf("--warmup=%d", f.Warmup),
		"--graph=" + f.Graph.String(), "--" + rankSymmetric + "=" + f.Symmetric.String(),
		"--in-place=" + f.InPlace.String(), "--stream=" + f.Stream}
}

// variants returns the ways to call op. onHost decides if --stream is auto.
func (f *Flags) variants(op Operation, onHost bool) []variant {
	stream := f.Stream == "on" || f.Stream == "auto" && !onHost
	places := slices.DeleteFunc(slices.Clone(f.InPlace), func(p bool) bool { return !slices.Contains(op.Places, p) })
	if len(places) == 0 {
		places = op.Places
	}
	var all []variant
	for _, graph := range f.Graph {
		for _, symmetric := range f.Symmetric {
			for _, place := range places {
				all = append(all, variant{stream: stream || graph, graph: graph, symmetric: symmetric, inPlace: place})
			}
		}
	}
	return all
}

// Collectives runs this program under mpirun for the sweep. It writes a JSON line for each
// case and variant.
func Collectives() {
	var f Flags
	fs := pflag.NewFlagSet("bench sweep-rank", pflag.ExitOnError)
	f.Register(fs, rankSymmetric)
	list := fs.StringSlice("case", nil, "op:dtype:elements:calls")
	var todo []Case
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("sweep")
		if err != nil {
			return err
		}
		for _, c := range todo {
			for _, v := range f.variants(c.Op, w.OnHost()) {
				m, err := c.DType.run(w, s, c, v, f.times)
				if err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
				if err := w.Emit(m); err != nil {
					return err
				}
			}
		}
		return nil
	}, func(ranks int) error {
		for _, text := range *list {
			c, err := parseCase(text, ranks)
			if err != nil {
				return err
			}
			todo = append(todo, c)
		}
		return f.Check()
	})
}

// measure checks and times one case.
func measure[T real](w *spmd.World, s *spmd.Stream, c Case, v variant, t times) (Measured, error) {
	m := Measured{Kind: Kind{App: "sweep", Op: c.Op.Name, Ranks: w.Size(), Dtype: c.DType.Name, Elements: c.Elements,
		Bytes: c.Bytes(), Stream: v.stream, Graph: v.graph, Symmetric: v.symmetric, InPlace: v.inPlace},
		Nodes: w.Nodes(), Device: w.Device(), Collectives: w.Collectives(), Calls: c.Calls}
	o, err := newBuffers[T](w, s, c, v)
	if err != nil {
		return m, err
	}
	defer o.free()
	comm := w.Comm()
	if v.stream {
		comm = comm.On(s)
	}
	call := o.call(comm)
	// One call is checked by itself: a timed call may overwrite the input of the next.
	if err := o.fill(); err != nil {
		return m, err
	}
	if err := repeat(w, s, v, 1, call, func(step func() error) error { return step() }); err != nil {
		return m, err
	}
	wrong, err := o.wrong()
	if err != nil {
		return m, err
	}
	if err := o.fill(); err != nil {
		return m, err
	}
	if v.graph {
		each, launches := InGraph(c.Calls)
		m.Calls = each * launches
	}
	err = repeat(w, s, v, c.Calls, call, func(step func() error) error {
		m.Stats, err = telemetry.Measure(w.Comm(), t.Warmup, t.Iters, step)
		return err
	})
	if err != nil {
		return m, err
	}
	if !v.inPlace || !c.Op.modifies {
		again, err := o.wrong()
		if err != nil {
			return m, err
		}
		wrong += again
	}
	for i := range m.Samples {
		m.Samples[i] /= float64(m.Calls * c.Op.trips)
	}
	m.Stats = telemetry.StatsOf(m.Samples)
	m.Wrong, m.OK = &wrong, wrong == 0
	return m, nil
}

// GraphCalls is how many calls a graph holds: the default iterations of nccl-tests.
const GraphCalls = 20

// InGraph returns how many calls a graph holds, and how often it is launched for at least
// calls in all.
func InGraph(calls int) (each, launches int) {
	each = min(calls, GraphCalls)
	return each, (calls + each - 1) / each
}

// repeat makes a step of a number of calls and passes it to use. The step returns when all of them
// have finished. In a graph it launches a graph of some calls again and again.
func repeat(w *spmd.World, s *spmd.Stream, v variant, calls int, call func() error,
	use func(step func() error) error) error {
	times := func(n int, call func() error) func() error {
		return func() error {
			for range n {
				if err := call(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	enqueue := times(calls, call)
	if v.graph {
		each, launches := InGraph(calls)
		g, err := s.Capture(times(each, call))
		if err != nil {
			return err
		}
		defer g.Close()
		enqueue = times(launches, func() error { return g.Launch(s) })
	}
	if !v.stream {
		return use(enqueue)
	}
	return use(func() error {
		if err := enqueue(); err != nil {
			return err
		}
		return s.Synchronize()
	})
}
