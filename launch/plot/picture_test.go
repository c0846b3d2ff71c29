package plot

import (
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/runlog"
)

// fall is a run whose loss falls, and is validated in every tenth step.
func fall(name string, steps int) runlog.Run {
	r := runlog.Run{Name: name}
	lr, rate := 0.001, 1000.0
	for i := 1; i <= steps; i++ {
		loss, val := 5/float64(i), 6/float64(i)
		s := runlog.Step{Step: i, Loss: &loss, LR: &lr, TokS: &rate}
		if i%10 == 0 {
			s.ValLoss = &val
		}
		r.Steps = append(r.Steps, s)
	}
	return r
}

func TestPicture(t *testing.T) {
	dir := t.TempDir()
	svg, bitmap := filepath.Join(dir, "x.svg"), filepath.Join(dir, "x.png")
	for _, file := range []string{svg, bitmap} {
		if err := picture(file, false, fall("run-a", 30), fall("run-b", 5000)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(strings.NewReader(string(text))); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"run-a", "run-b", "loss of the validation", "tokens a second", "learning rate"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
	f, err := os.Open(bitmap)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if im, err := png.Decode(f); err != nil || im.Bounds().Dx() < 1000 {
		t.Errorf("%v", err)
	}
}
