package progress

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/pty"
	"lockstep/internal/terminal"
)

// told is what a Work of a test has told.
type told struct {
	log, screen bytes.Buffer
	clock       time.Time
}

func (o *told) start(columns int, what string, total int64, unit string) *Work {
	log := zerolog.New(zerolog.ConsoleWriter{Out: &o.log, NoColor: true, PartsOrder: []string{zerolog.MessageFieldName}})
	o.clock = time.Unix(1e9, 0)
	return start(&log, &terminal.Screen{To: &o.screen}, func() int { return columns }, func() time.Time { return o.clock }, what, total, unit)
}

// shows is the last line of the screen.
func (o *told) shows() string {
	lines := pty.Lines(o.screen.String())
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

// Without a terminal there is a line of the log every half minute, or none.
func TestLines(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		var o told
		p := o.start(0, "tokenising", 5e9, Bytes)
		if quiet {
			p.Quiet()
		}
		for range 40 {
			o.clock = o.clock.Add(2 * time.Second)
			p.Add(1e8)
		}
		p.Done()
		want := "tokenising  30 %  1.5 GB of 5 GB  50 MB/s  1m10s left\ntokenising  60 %  3 GB of 5 GB  50 MB/s  40s left\n"
		if quiet {
			want = ""
		}
		if o.log.String() != want || o.screen.Len() != 0 {
			t.Errorf("quiet %v: %q, want %q; screen %q", quiet, &o.log, want, &o.screen)
		}
	}
	var none *Work
	none.Quiet().From(3).Add(1)
	none.Note("x")
	none.Done()
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3*time.Hour + 5*time.Minute: "3h05m", 200 * time.Hour: "8 days",
	} {
		if got := duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0 B", 999: "999 B", 1234: "1.23 kB", 999700: "1 MB", 5e9: "5 GB", 12e15: "1.2e+04 TB"} {
		if got := size(n); got != want {
			t.Errorf("%g: %s, want %s", n, got, want)
		}
	}
	p := &Work{unit: "steps"}
	for r, want := range map[float64]string{1234: "1234 steps/s", 0.5: "0.5 steps/s", 0.01: "1m40s each"} {
		if got := p.rate(r); got != want {
			t.Errorf("%g: %s, want %s", r, got, want)
		}
	}
}
