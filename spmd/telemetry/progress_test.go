package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/cli"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/spmdtest"
)

// told is all output of a test's Work.
type told struct {
	log, screen bytes.Buffer
	clock       time.Time
	slowest     int // -1: not known
}

func (o *told) start(columns int, what string, total int64, unit string) *Work {
	log := zerolog.New(zerolog.ConsoleWriter{Out: &o.log, NoColor: true,
		PartsOrder: []string{zerolog.MessageFieldName}})
	o.clock, o.slowest = time.Unix(1e9, 0), -1
	return begin(&Work{log: &log, screen: &cli.Screen{To: &o.screen}, columns: func() int { return columns },
		now: func() time.Time { return o.clock }, slowest: func() (int, bool) { return o.slowest, o.slowest >= 0 },
		what: what, total: total, unit: unit})
}

// shows is the last line of the screen.
func (o *told) shows() string {
	lines := testkit.ScreenLines(o.screen.String())
	return lines[len(lines)-1]
}

func TestLive(t *testing.T) {
	var o told
	p := o.start(80, "training", 1500, "steps").From(300)
	for _, tc := range []struct {
		after time.Duration
		add   int64
		want  string
	}{
		{50 * time.Millisecond, 0, "training  20 %  300/1500 steps"},
		{50 * time.Millisecond, 1, "training  20 %  300/1500 steps"}, // too often
		{100 * time.Millisecond, 1, "training  20 %  302/1500 steps"},
		{9800 * time.Millisecond, 98, "training  26 %  400/1500 steps  10 steps/s  1m50s left"},
		{10 * time.Second, 50, "training  30 %  450/1500 steps  5 steps/s  3m30s left"},
		{10 * time.Second, 50, "training  33 %  500/1500 steps  5 steps/s  3m20s left"}, // of late
		{10 * time.Second, 1000, "training  100 %  1500/1500 steps  100 steps/s"},
	} {
		o.clock = o.clock.Add(tc.after)
		p.Add(tc.add)
		if got := o.shows(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	o.clock = o.clock.Add(time.Second)
	p.Note("loss %.1f\x1b[2J", 3.0)
	if got := o.shows(); !strings.HasSuffix(got, `loss 3.0\x1b[2J`) {
		t.Errorf("%q", got)
	}
	p.Done()
	p.Add(1)
	if o.shows() != "" || o.log.Len() != 0 {
		t.Errorf("at the end %q, log %q", o.shows(), &o.log)
	}
}

// The line names the rank that others wait for, while one is.
func TestSlowest(t *testing.T) {
	var o told
	p := o.start(80, "training", 1000, "steps")
	for _, tc := range []struct {
		after   time.Duration
		slowest int
		want    string
	}{
		{time.Second, -1, "training  1 %  10/1000 steps  10 steps/s  1m39s left"},
		{time.Second, 0, "training  2 %  20/1000 steps  10 steps/s  1m38s left  rank 0 slowest"},
		// asked too often
		{500 * time.Millisecond, 2, "training  3 %  30/1000 steps  12 steps/s  1m20s left  rank 0 slowest"},
		{500 * time.Millisecond, 2, "training  4 %  40/1000 steps  13 steps/s  1m12s left  rank 2 slowest"},
		{time.Second, -1, "training  5 %  50/1000 steps  12 steps/s  1m16s left"},
	} {
		o.clock, o.slowest = o.clock.Add(tc.after), tc.slowest
		p.Add(10)
		if got := o.shows(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

// A line that is too wide for 80 columns loses its least important parts, and never its end.
func TestFits(t *testing.T) {
	for columns, want := range map[int]string{
		200: "training  42 %  42000/100000 steps  42000 steps/s  1s left  loss 3.123  saving  rank 2 slowest",
		90:  "training  42 %  42000/100000 steps  1s left  loss 3.123  saving  rank 2 slowest",
		80:  "training  42 %  42000/100000 steps  1s left  loss 3.123  saving  rank 2 slowest",
		79:  "training  42000/100000 steps  1s left  loss 3.123  saving  rank 2 slowest",
		60:  "training  1s left  loss 3.123  saving  rank 2 slowest",
	} {
		var o told
		p := o.start(columns, "training", 100000, "steps")
		o.slowest, o.clock = 2, o.clock.Add(time.Second)
		p.note = "loss 3.123  saving"
		p.Add(42000)
		if got := o.shows(); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}

// A rank that comes late to collectives is named, on rank 0, without a dashboard.
func TestSlowestOfJob(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	cfg := spmdtest.Config()
	cfg.Summary = "on"
	err := spmd.Local(t.Context(), cfg, 3, func(_ context.Context, w *spmd.World) error {
		found, err := spmd.Alloc[int32](w, 1)
		if err != nil {
			return err
		}
		for found.At(0) == 0 {
			if w.Rank() == 1 {
				time.Sleep(10 * time.Millisecond) // its work
			}
			rank, known := own.Slowest(w)
			if known && (w.Rank() != 0 || rank != 1) {
				return fmt.Errorf("rank %d hears that rank %d is the slowest", w.Rank(), rank)
			}
			if known {
				found.Set(0, 1)
			}
			if err := spmd.AllReduce(w.Comm(), found, found, spmd.Max); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Without a terminal there is a line of the log every half minute, or none.
func TestLines(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		var o told
		p := o.start(0, "tokenising", 5e9, "bytes")
		if quiet {
			p.Quiet()
		}
		for range 40 {
			o.clock = o.clock.Add(2 * time.Second)
			p.Add(1e8)
		}
		p.Done()
		want :=
			"tokenising  30 %  1.50 GB of 5.00 GB  50.0 MB/s  1m10s left\n" +
				"tokenising  60 %  3.00 GB of 5.00 GB  50.0 MB/s  40s left\n"
		if quiet {
			want = ""
		}
		if o.log.String() != want || o.screen.Len() != 0 {
			t.Errorf("quiet %v: %q, want %q; screen %q", quiet, &o.log, want, &o.screen)
		}
	}
	var none *Work
	none.Quiet().SetBeside(true).From(3).Add(1)
	none.Note("x")
	none.Done()
}

// Work beside other work writes lines of the log alone; the other's live line stays.
func TestSetBeside(t *testing.T) {
	for _, columns := range []int{0, 80} {
		var o told
		other := o.start(columns, "training", 1500, "steps").Quiet()
		other.Add(1)
		p := o.start(columns, "saving", 5e9, "bytes").SetBeside(true)
		for range 20 {
			o.clock = o.clock.Add(2 * time.Second)
			p.Add(1e8)
		}
		log, screen := "saving  30 %  1.50 GB of 5.00 GB  50.0 MB/s  1m10s left\n", ""
		if columns > 0 {
			log, screen = "", "training  0 %  1/1500 steps"
		}
		if o.log.String() != log || columns > 0 && o.shows() != screen || columns == 0 && o.screen.Len() > 0 {
			t.Errorf("%d columns: log %q, want %q; screen %q", columns, &o.log, log, &o.screen)
		}
		if columns == 0 {
			continue
		}
		p.SetBeside(false).Add(1e8)
		if got := o.shows(); !strings.HasPrefix(got, "saving  42 %  2.10 GB of 5.00 GB") {
			t.Errorf("alone: %q", got)
		}
		if p.SetBeside(true); o.shows() != "" {
			t.Errorf("beside again: %q", o.shows())
		}
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3*time.Hour + 5*time.Minute: "3h05m",
		200 * time.Hour: "8 days",
	} {
		if got := duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	p := &Work{unit: "steps"}
	for r, want := range map[float64]string{1234: "1234 steps/s", 0.5: "0.5 steps/s", 0.01: "1m40s each"} {
		if got := p.rate(r); got != want {
			t.Errorf("%g: %s, want %s", r, got, want)
		}
	}
}
