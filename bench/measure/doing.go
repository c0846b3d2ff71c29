package measure

import (
	"fmt"
	"io"
	"os"
	"time"

	"lockstep/internal/cli"
)

// seldom is the time between progress lines without a terminal.
const seldom = 30 * time.Second

// Doing says what is being measured. On a terminal it keeps one line of standard error up to date.
// Elsewhere it prints a line now and then. The zero value is ready for use by one goroutine.
type Doing struct {
	screen  *cli.Screen
	columns func() int
	plain   io.Writer
	now     func() time.Time
	printed time.Time // at first never
}

// Say says that the kth of n measurements is going on, and how many rows there are so far.
func (d *Doing) Say(what string, k, n, rows int) {
	if d.screen == nil {
		d.screen, d.columns, d.plain, d.now = cli.Stderr, cli.Columns, os.Stderr, time.Now
	}
	text := fmt.Sprintf("%d of %d  %s", k, n, what)
	switch rows {
	case 0:
	case 1:
		text += "  1 row"
	default:
		text += fmt.Sprintf("  %d rows", rows)
	}
	if columns := d.columns(); columns > 0 {
		d.screen.Show("bench  "+text, columns)
	} else if now := d.now(); now.Sub(d.printed) >= seldom {
		d.printed = now
		fmt.Fprintf(d.plain, "bench: %s\n", text)
	}
}

// Done removes the line.
func (d *Doing) Done() {
	if d.screen != nil {
		d.screen.Show("", 0)
	}
}
