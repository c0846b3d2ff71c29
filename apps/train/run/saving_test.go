package run

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Without a terminal the log gets a line each half minute while a checkpoint takes long. This holds
// beside steps and after them, while bytes are written, and while files of other ranks are missing.
func TestSavingLines(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr")) // no terminal, wherever the test runs
	spmdtest.Must(t, err)
	stderr := os.Stderr
	os.Stderr = file
	defer func() {
		os.Stderr = stderr
		file.Close()
	}()
	err = spmd.Local(t.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		var log bytes.Buffer
		was := *w.Log()
		defer func() { *w.Log() = was }()
		*w.Log() = zerolog.New(zerolog.ConsoleWriter{Out: &log, NoColor: true,
			PartsOrder: []string{zerolog.MessageFieldName}})
		synctest.Test(t, func(t *testing.T) {
			s := &saving{w: w}
			for n := int64(0); n <= 40; n++ {
				s.written(n*1e8, 4e9)
				time.Sleep(time.Second)
			}
			if got := s.note(); got != "  saving 100 %" {
				t.Errorf("beside the loss %q", got)
			}
			s.last()
			for range 200 {
				s.written(4e9, 4e9)
				time.Sleep(100 * time.Millisecond)
			}
			s.end()
			if got := s.note(); got != "" {
				t.Errorf("at the end %q", got)
			}
			time.Sleep(time.Minute)
			s.written(1, 1e9) // the next one has a clock of its own
			s.end()
		})
		want := "saving  75 %  3.00 GB of 4.00 GB  100 MB/s  10s left\nsaving  100 %  4.00 GB of 4.00 GB  33.3 MB/s\n"
		if log.String() != want {
			t.Errorf("%q, want %q", &log, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
