package main

import (
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"lockstep/spmd"
)

// meter is a progress bar on standard error. The nil meter shows nothing.
type meter struct{ bar *progressbar.ProgressBar }

// newMeter returns a bar on rank 0 if a person is looking, else nil: log files are
// no place for one.
func newMeter(w *spmd.World, what string, total int64, isBytes bool) *meter {
	if w.Rank() != 0 || w.Log().GetLevel() > zerolog.InfoLevel || !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	return &meter{progressbar.NewOptions64(total,
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

// add moves the bar on by n. Any goroutine may call it.
func (m *meter) add(n int64) {
	if m != nil {
		m.bar.Add64(n) // fails beyond the total and when the terminal is gone
	}
}

// describe changes the text before the bar.
func (m *meter) describe(what string) {
	if m != nil {
		m.bar.Describe(what)
	}
}

// hide takes the bar off the screen, for a line to be printed; the next add shows
// it again.
func (m *meter) hide() {
	if m != nil {
		m.bar.Clear()
	}
}

// finish takes the bar away.
func (m *meter) finish() {
	if m != nil {
		m.bar.Finish()
	}
}
