package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"lockstep/internal/cli"
	"lockstep/internal/readable"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
)

const (
	often   = 100 * time.Millisecond // between changes of the live line
	seldom  = 30 * time.Second       // between lines of the log
	recent  = 10 * time.Second       // what the rate is taken from, at least
	settled = 500 * time.Millisecond // before the first rate
	slowly  = time.Second            // between questions for the slowest rank
)

// Work is long work that this rank tells of. The nil Work tells nothing. Any goroutine may call its
// methods.
type Work struct {
	log     *zerolog.Logger
	screen  *cli.Screen
	columns func() int // 0: no terminal
	now     func() time.Time
	slowest func() (rank int, known bool)
	what    string
	unit    string
	quiet   bool

	mu           sync.Mutex
	beside       bool // of other work, which has the live line
	done, total  int64
	note         string
	shown        time.Time // on the screen; at first never
	logged       time.Time
	before, mark point     // the rate is that since before; mark takes its place later
	asked        time.Time // for the slowest rank; at first never
	last         string    // what was answered
}

// point is how far the work was at a time.
type point struct {
	at   time.Time
	done int64
}

// StartWork begins to tell of work of total units; "bytes" are shown as 1.2 GB. Only rank 0 tells:
// on other ranks, and if the log is quiet, StartWork returns nil. One Work at a time has the live
// line: the last to change. Not collective.
func StartWork(w *spmd.World, what string, total int64, unit string) *Work {
	if w.Rank() != 0 || w.Log().GetLevel() > zerolog.InfoLevel {
		return nil
	}
	columns := cli.Columns
	if columns() == 0 {
		columns = func() int { return 0 }
	}
	return begin(&Work{log: w.Log(), screen: cli.Stderr, columns: columns, now: time.Now,
		slowest: func() (rank int, known bool) { return own.Slowest(w) },
		what:    what, total: total, unit: unit})
}

func begin(p *Work) *Work {
	now := p.now
	p.before = point{at: now()}
	p.mark, p.logged = p.before, p.before.at
	return p
}

// Quiet leaves out lines of the log, for a program that has its own. It returns p.
func (p *Work) Quiet() *Work {
	if p != nil {
		p.quiet = true
	}
	return p
}

// SetBeside leaves the live line to other work, whose Note may tell of this one. p then writes
// lines of the log alone, if there is no terminal. SetBeside(false) gives it its live line again.
// It returns p.
func (p *Work) SetBeside(yes bool) *Work {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := p.columns(); n > 0 && yes && !p.beside && !p.shown.IsZero() {
			p.screen.Show("", n)
		}
		p.beside = yes
	}
	return p
}

// From says that done units were done before the start, as when a run goes on. It returns p.
func (p *Work) From(done int64) *Work {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done = done
		p.before.done, p.mark.done = done, done
	}
	return p
}

// Add says that n more units are done.
func (p *Work) Add(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	p.tell()
}

// Note adds something, such as a loss. It stands at the end of the line until the next Note.
func (p *Work) Note(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note = readable.Line(fmt.Sprintf(format, args...))
	p.tell()
}

// Done takes the line away. A second Done does nothing.
func (p *Work) Done() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.columns(); n > 0 && !p.beside {
		p.screen.Show("", n)
	}
	p.quiet, p.columns = true, func() int { return 0 }
}

// tell shows a change, if it is time to. The caller holds mu.
func (p *Work) tell() {
	now := p.now()
	if now.Sub(p.shown) < often {
		return
	}
	if n := p.columns(); n > 0 {
		if !p.beside {
			p.shown = now
			p.screen.Show(p.line(now, n), n)
		}
	} else if !p.quiet && now.Sub(p.logged) >= seldom {
		p.logged = now
		p.log.Info().Msg(p.line(now, 0))
	}
}

// line returns the line to show, shorter than columns; 0 is any length. It first leaves out the
// parts that a person misses least: the rate, the percentage, the amounts.
func (p *Work) line(now time.Time, columns int) string {
	if now.Sub(p.mark.at) >= recent {
		p.before, p.mark = p.mark, point{now, p.done}
	}
	var percent, rate, left string
	if p.total > 0 {
		percent = fmt.Sprintf("%d %%", 100*min(p.done, p.total)/p.total)
	}
	if took := now.Sub(p.before.at); took >= settled && p.done > p.before.done {
		r := float64(p.done-p.before.done) / took.Seconds()
		rate = p.rate(r)
		if p.total > p.done {
			left = duration(time.Duration(float64(p.total-p.done)/r*float64(time.Second))) + " left"
		}
	}
	if now.Sub(p.asked) >= slowly {
		p.asked, p.last = now, ""
		if rank, known := p.slowest(); known {
			p.last = fmt.Sprintf("rank %d slowest", rank)
		}
	}
	amounts := p.amounts()
	for least := []*string{&rate, &percent, &amounts}; ; least = least[1:] {
		words := slices.DeleteFunc([]string{p.what, percent, amounts, rate, left, p.note, p.last},
			func(w string) bool { return w == "" })
		line := strings.Join(words, "  ")
		if len(least) == 0 || columns == 0 || utf8.RuneCountInString(line) < columns {
			return line
		}
		*least[0] = ""
	}
}

func (p *Work) amounts() string {
	switch {
	case p.unit == "bytes" && p.total > 0:
		return spmd.Amount(p.done, "B") + " of " + spmd.Amount(p.total, "B")
	case p.unit == "bytes":
		return spmd.Amount(p.done, "B")
	case p.total > 0:
		return fmt.Sprintf("%d/%d %s", p.done, p.total, p.unit)
	}
	return fmt.Sprintf("%d %s", p.done, p.unit)
}

func (p *Work) rate(r float64) string {
	switch {
	case p.unit == "bytes":
		return spmd.Amount(r, "B/s")
	case r >= 10:
		return fmt.Sprintf("%.0f %s/s", r, p.unit)
	case r >= 0.1:
		return fmt.Sprintf("%.2g %s/s", r, p.unit)
	}
	return duration(time.Duration(float64(time.Second)/r)) + " each"
}

// duration has at most two units.
func duration(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}
