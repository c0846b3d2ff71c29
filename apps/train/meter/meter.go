package meter

import (
	"os"
	"time"

	"github.com/rs/zerolog"
	progressbar "github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"lockstep/spmd"
)

// Meter is a progress bar on standard error. The nil meter shows nothing.
type Meter struct{ bar *progressbar.ProgressBar }

// New returns a bar on rank 0 if a person is looking, else nil: log files are
// no place for one.
func New(w *spmd.World, what string, total int64, isBytes bool) *Meter {
	if w.Rank() != 0 || w.Log().GetLevel() > zerolog.InfoLevel || !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	return &Meter{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(isBytes),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(24),
		progressbar.OptionClearOnFinish(),
	)}
}

// Add moves the bar on by n. Any goroutine may call it.
func (m *Meter) Add(n int64) {
	if m != nil {
		m.bar.Add64(n) // fails beyond the total and when the terminal is gone
	}
}

// Describe changes the text before the bar.
func (m *Meter) Describe(what string) {
	if m != nil {
		m.bar.Describe(what)
	}
}

// Hide takes the bar off the screen, for a line to be printed; the next add shows
// it again.
func (m *Meter) Hide() {
	if m != nil {
		m.bar.Clear()
	}
}

// Finish takes the bar away.
func (m *Meter) Finish() {
	if m != nil {
		m.bar.Finish()
	}
}
