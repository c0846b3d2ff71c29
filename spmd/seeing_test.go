package spmd_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

// traceFile is a file of --trace.
type traceFile struct {
	Unit   string       `json:"displayTimeUnit"`
	Events []traceEvent `json:"traceEvents"`
	Other  struct {
		Ranks   int               `json:"ranks"`
		Dropped map[string]uint64 `json:"dropped_events"`
		Within  float64           `json:"clocks_within_us"`
	} `json:"otherData"`
}

type traceEvent struct {
	Ph   string   `json:"ph"`
	Pid  *int     `json:"pid"`
	Tid  *int     `json:"tid"`
	Ts   *float64 `json:"ts"`
	Dur  *float64 `json:"dur"`
	Name string   `json:"name"`
	Cat  string   `json:"cat"`
	Bp   string   `json:"bp"`
	ID   int      `json:"id"`
	Args struct {
		Name                     string
		Bytes, Seq               int
		Comm                     string
		To, From, Sent, Received *int
		Rank                     *int
	} `json:"args"`
}

// inNanos is a time of the file, which has three decimals.
func inNanos(us float64) int { return int(us*1e3 + 0.5) }

func (e *traceEvent) start() int { return inNanos(*e.Ts) }
func (e *traceEvent) end() int   { return inNanos(*e.Ts) + inNanos(*e.Dur) }

// line is a thread of the file.
type line struct{ pid, tid int }

// readTrace reads a file of --trace, and checks it against the format. Each event has the fields of
// its phase. Events of a thread nest. Arrows have both ends, each inside of an event, and lead
// forward in time. Collectives have all begun before the first of them ends that needs all. One
// that has failed has no number.
func readTrace(t *testing.T, name string) traceFile {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		r, err = gzip.NewReader(f)
		must(t, err)
	}
	text, err := io.ReadAll(r)
	must(t, err)
	var file traceFile
	dec := json.NewDecoder(strings.NewReader(string(text)))
	must(t, dec.Decode(&file))
	slices := map[line][]*traceEvent{}
	arrows := map[int][]*traceEvent{}
	named := map[line]bool{}
	for i := range file.Events {
		e := &file.Events[i]
		if e.Pid == nil || e.Tid == nil || e.Ts == nil || *e.Ts < 0 || *e.Pid < 0 ||
			*e.Pid >= file.Other.Ranks || e.Name == "" {
			t.Fatalf("event %d lacks a field: %+v", i, e)
		}
		at := line{*e.Pid, *e.Tid}
		switch e.Ph {
		case "X":
			if e.Dur == nil || *e.Dur < 0 || e.Cat == "" {
				t.Fatalf("event %d: %+v", i, e)
			}
			slices[at] = append(slices[at], e)
		case "M":
			if e.Name == "thread_name" {
				if named[at] || e.Args.Name == "" {
					t.Errorf("thread %v has the name %q", at, e.Args.Name)
				}
				named[at] = true
			}
		case "s", "t", "f":
			if e.ID == 0 || e.Cat == "" || (e.Ph == "f") != (e.Bp == "e") {
				t.Fatalf("event %d: %+v", i, e)
			}
			arrows[e.ID] = append(arrows[e.ID], e)
		default:
			t.Fatalf("event %d has the phase %q", i, e.Ph)
		}
	}
	if file.Unit != "ns" || len(slices) == 0 {
		t.Fatalf("unit %q, %d threads", file.Unit, len(slices))
	}
	for at, list := range slices {
		if !named[at] {
			t.Errorf("thread %v has no name", at)
		}
		checkNesting(t, at, list)
	}
	for id, list := range arrows {
		checkArrow(t, id, list, slices)
	}
	checkOrder(t, slices, 2*inNanos(file.Other.Within))
	return file
}

func checkNesting(t *testing.T, at line, list []*traceEvent) {
	t.Helper()
	slices.SortStableFunc(list, func(a, b *traceEvent) int { return cmp.Or(a.start()-b.start(), b.end()-a.end()) })
	var open []int
	for _, e := range list {
		for len(open) > 0 && open[len(open)-1] <= e.start() {
			open = open[:len(open)-1]
		}
		if n := len(open); n > 0 && e.end() > open[n-1] {
			t.Errorf("thread %v: %s from %d to %d overlaps one that ends at %d", at, e.Name, e.start(),
				e.end(), open[n-1])
		}
		open = append(open, e.end())
	}
}

func checkArrow(t *testing.T, id int, list []*traceEvent, all map[line][]*traceEvent) {
	t.Helper()
	phases := ""
	for i, e := range list {
		phases += e.Ph
		if i > 0 && e.start() < list[i-1].start() {
			t.Errorf("arrow %d leads back in time", id)
		}
		// Viewers have an event end before its end, and some cut both times of it to whole ns
		// below.
		within := func(s *traceEvent) bool {
			return s.start() <= e.start() && (e.start() == s.start() || e.start() < s.end()-2) && s.Cat != "region"
		}
		if !slices.ContainsFunc(all[line{*e.Pid, *e.Tid}], within) {
			t.Errorf("arrow %d, %s: no event at its end on rank %d", id, e.Name, *e.Pid)
		}
	}
	if len(list) < 2 || phases != "s"+strings.Repeat("t", len(list)-2)+"f" {
		t.Errorf("arrow %d has the phases %s", id, phases)
	}
}

// checkOrder checks times over ranks. Two of them may differ from the true ones by some ns.
func checkOrder(t *testing.T, all map[line][]*traceEvent, within int) {
	t.Helper()
	type call struct {
		comm           string
		seq, from, to_ int
	}
	last, first := map[call]int{}, map[call]int{} // begin and end
	note := func(k call, begin, end int) {
		if at, ok := last[k]; !ok || begin > at {
			last[k] = begin
		}
		if at, ok := first[k]; !ok || end < at {
			first[k] = end
		}
	}
	const forever = 1 << 62
	for _, list := range all {
		for _, e := range list {
			me := *e.Pid
			if e.Args.Rank != nil {
				me = *e.Args.Rank
			}
			switch {
			case e.Cat == "collective" && e.Args.Seq > 0 &&
				(e.Name == "AllReduce" || e.Name == "Barrier" || e.Name == "AllGather"):
				note(call{e.Args.Comm, e.Args.Seq, -1, -1}, e.start(), e.end())
			case e.Cat == "message":
				if e.Args.To != nil {
					note(call{e.Args.Comm, *e.Args.Sent, me, *e.Args.To}, e.start(), forever)
				}
				if e.Args.From != nil {
					note(call{e.Args.Comm, *e.Args.Received, *e.Args.From, me}, 0, e.end())
				}
			}
		}
	}
	for k, begin := range last {
		if end := first[k]; end+within < begin {
			t.Errorf("%+v: a rank is done %d ns before another begins", k, begin-end)
		}
	}
}

// count is how many events of the file is holds for.
func (f *traceFile) count(is func(e *traceEvent) bool) (n int) {
	for i := range f.Events {
		if is(&f.Events[i]) {
			n++
		}
	}
	return n
}

// seen is a program that does a bit of all that a trace shows.
func seen(w *spmd.World) (err error) {
	const rounds = 5
	defer w.Region("all").End()
	n, r := w.Size(), w.Rank()
	x, err := spmd.Alloc[float32](w, 64)
	if err != nil {
		return err
	}
	defer x.Free()
	y, err := spmd.Alloc[float32](w, 64*n)
	if err != nil {
		return err
	}
	defer y.Free()
	half, err := w.Comm().Split(r%2, r)
	if err != nil {
		return err
	}
	s, err := w.NewStream("work")
	if err != nil {
		return err
	}
	other, err := w.NewStream("beside")
	if err != nil {
		return err
	}
	c := w.Comm().On(s)
	g, err := s.Capture(func() error {
		return errors.Join(spmd.Fill(s, x, 1), other.After(s), spmd.Fill(other, y, 2),
			spmd.AllReduce(c, x, x, spmd.Sum), s.After(other))
	})
	if err != nil && w.OnHost() {
		return err
	}
	defer func() {
		if g != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	for range rounds {
		step := w.Region("step")
		all, one := hostdata.AllReduce(w.Comm(), r, spmd.Sum)
		word, two := hostdata.Broadcast(w.Comm(), fmt.Sprint(all), 0)
		if err := errors.Join(one, two); err != nil || word != fmt.Sprint(n*(n-1)/2) {
			return fmt.Errorf("%q: %w", word, err)
		}
		if err := errors.Join(spmd.AllReduce(w.Comm(), x, x, spmd.Max), spmd.AllGather(c, y, x),
			spmd.Barrier(half.On(s)),
			spmd.SendRecv(c, y.Slice(0, 64), (r+n-1)%n, x, (r+1)%n), spmd.Copy(s, y.Slice(64, 128), x)); err != nil {
			return err
		}
		if r == 0 {
			for to := 1; to < n; to++ {
				if err := spmd.Send(w.Comm(), x, to); err != nil {
					return err
				}
			}
		} else if err := spmd.Recv(w.Comm(), x, 0); err != nil {
			return err
		}
		if err := other.After(s); err != nil {
			return err
		}
		err := w.Comm().On(other).Group(func() error {
			return errors.Join(spmd.Send(w.Comm().On(other), x, (r+1)%n),
				spmd.Recv(w.Comm().On(other), y.Slice(0, 64), (r+n-1)%n))
		})
		if err != nil {
			return err
		}
		if g != nil {
			if err := g.Launch(s); err != nil {
				return err
			}
		}
		if err := errors.Join(s.HostFunc(func() error { return nil }), s.Synchronize(),
			other.Synchronize()); err != nil {
			return err
		}
		step.End()
	}
	return nil
}

// A trace shows each call once on each rank, with its bytes and number, and joins those of all
// ranks.
func TestTrace(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	for _, n := range []int{2, 3} {
		for _, ext := range []string{".json", ".json.gz"} {
			t.Run(fmt.Sprint(n, ext), func(t *testing.T) {
				name := filepath.Join(t.TempDir(), "t"+ext)
				cfg := spmdtest.Config()
				cfg.Trace = name
				must(t, spmd.Local(t.Context(), cfg, n,
					func(_ context.Context, w *spmd.World) error { return seen(w) }))
				f := readTrace(t, name)
				checkSeen(t, &f, n)
				if left, err := filepath.Glob(name + ".*"); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		}
	}
}

// The same on ranks that are processes, on the device that tests run on. A GPU's work is timed by
// its own clock.
func TestTraceOfProcesses(t *testing.T) { traceProcesses(t, []int{2, 3}) }

func traceProcesses(t *testing.T, ranks []int) {
	t.Helper()
	for _, n := range spmdtest.Ranks(t, ranks...) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			name := os.Getenv("SPMDTEST_TRACE")
			if name == "" { // on a rank it is that of the test that started the rank
				name = filepath.Join(t.TempDir(), "t.json")
				t.Setenv("SPMDTEST_TRACE", name)
			}
			spmdtest.RunAlone(t, []int{n}, func(t *testing.T, w *spmd.World) { must(t, seen(w)) })
			f := readTrace(t, name)
			if spmdtest.Device() == "host" {
				checkSeen(t, &f, n)
				return
			}
			const rounds = 5
			for what, least := range map[string]int{"AllReduce": 2 * n * rounds,
				"hostdata.Broadcast": n * rounds, "AllGather": n * rounds, "SendRecv": n * rounds,
				"Group": n * rounds, "Copy": n * rounds, "HostFunc": n * rounds} {
				if got := f.count(func(e *traceEvent) bool { return e.Ph == "X" && e.Name == what }); got < least {
					t.Errorf("%d of %s, want %d or more", got, what, least)
				}
			}
			if arrows := f.count(func(e *traceEvent) bool { return e.Ph == "s" }); arrows < rounds*3 {
				t.Errorf("%d arrows", arrows)
			}
			if len(f.Other.Dropped) > 0 {
				t.Errorf("dropped: %v", f.Other.Dropped)
			}
		})
	}
}

// checkSeen compares a trace of seen on the host with what the program does.
func checkSeen(t *testing.T, f *traceFile, n int) {
	t.Helper()
	const rounds = 5
	names := map[string]int{}
	for i := range f.Events {
		if e := &f.Events[i]; e.Ph == "X" {
			names[e.Cat+" "+e.Name]++
		}
	}
	want := map[string]int{
		"region all": n, "region step": n * rounds,
		"collective AllReduce": 3 * n * rounds, "collective hostdata.Broadcast": n * rounds,
		"collective AllGather": n * rounds, "collective Barrier": n * rounds,
		"message SendRecv": n * rounds, "message Group": n * rounds, "message Send": rounds * (2*n - 1),
		"message Recv": rounds * (2*n - 1),
		"copy Copy":    n * rounds, "copy Fill": 2 * n * rounds, "compute HostFunc": n * rounds,
		"graph graph": n * rounds,
	}
	for what, k := range want {
		if names[what] != k {
			t.Errorf("%d of %q, want %d", names[what], what, k)
		}
		delete(names, what)
	}
	maps.DeleteFunc(names, func(what string, _ int) bool {
		return strings.HasPrefix(what, "wait ") || what == "collective Split"
	})
	if len(names) > 0 {
		t.Errorf("and %v", names)
	}
	if got := f.count(func(e *traceEvent) bool {
		return e.Name == "AllGather" && e.Ph == "X" && e.Args.Bytes != 256*n
	}); got > 0 {
		t.Errorf("%d AllGather of other than %d bytes", got, 256*n)
	}
	arrows := f.count(func(e *traceEvent) bool { return e.Ph == "s" })
	// of collectives of all ranks, of the half that has two ranks, and of messages
	if most, least := rounds*(5+2*n+2*n-1)+2*rounds+1, rounds*(5+n+n-1); arrows < least || arrows > most {
		t.Errorf("%d arrows, want %d to %d", arrows, least, most)
	}
}

// A file that cannot be made is refused before the run, on one line.
func TestTraceRefused(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	cfg := spmdtest.Config()
	cfg.Trace = filepath.Join(t.TempDir(), "no", "such", "folder.json")
	err := spmd.Local(t.Context(), cfg, 2, func(context.Context, *spmd.World) error { t.Error("it runs"); return nil })
	if err == nil || !strings.Contains(err.Error(), "--trace: open ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	for flag, name := range map[string]*string{"--trace": &cfg.Trace, "--json": &cfg.JSON} {
		cfg.Trace = ""
		*name = t.TempDir()
		err := spmd.Local(t.Context(), cfg, 2,
			func(context.Context, *spmd.World) error { t.Error("it runs"); return nil })
		if err == nil || !strings.Contains(err.Error(), flag+": "+*name+" is a folder") {
			t.Errorf("%v", err)
		}
		*name = ""
	}
}

// An existing file is replaced only if a flag says so. A trace that cannot be written fails the run
// at its end.
func TestTraceReplaces(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	name := filepath.Join(t.TempDir(), "t.json")
	must(t, os.WriteFile(name, []byte("data of mine"), 0o666))
	for _, tc := range []struct {
		name      string
		overwrite bool
		runs      bool
		want      string
	}{
		{name, false, false, "--trace: " + name + " is there already: give another name, or --overwrite to replace it"},
		{name, true, true, ""},
		{"/dev/full", false, true, "--trace: the run has ended well, but its trace is not written: write " +
			"/dev/full: no space left on device"},
	} {
		cfg := spmdtest.Config()
		cfg.Trace, cfg.Overwrite = tc.name, tc.overwrite
		ran := false
		err := spmd.Local(t.Context(), cfg, 3, func(_ context.Context, w *spmd.World) error {
			if w.Rank() == 0 {
				ran = true
			}
			return seen(w)
		})
		if ran != tc.runs || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: ran %v, %v; want %q", tc.name, ran, err, tc.want)
		}
	}
	readTrace(t, name)
}

// The summary comes at the end if a flag says so, once, and not by itself after a short run.
func TestSummary(t *testing.T) {
	const head = "summary of 2 ranks in "
	status, out := run(t, 2, "sum", nil, "--summary", "on")
	for _, want := range []string{head, "  collectives ", "    AllReduce", "  start: process ", "mpi ",
		"  memory at most: ", "process "} {
		if status != 0 || strings.Count(out, want) < 1 || strings.Count(out, head) != 1 {
			t.Errorf("status %d, without %q\n%s", status, want, out)
		}
	}
	if status, out := run(t, 2, "sum", nil, "--summary", "on", "--log-format", "json"); status != 0 ||
		strings.Contains(out, head) || strings.Count(out, `"summary":{"ranks":2,`) != 1 {
		t.Errorf("status %d\n%s", status, out)
	}
	if status, out := run(t, 2, "sum", nil); status != 0 || strings.Contains(out, "summary") {
		t.Errorf("status %d\n%s", status, out)
	}
	if status, out := run(t, 1, "sum", nil, "--summary", "perhaps"); status != 2 ||
		!strings.Contains(out, "--summary perhaps: want auto, on, off") {
		t.Errorf("status %d\n%s", status, out)
	}
}
