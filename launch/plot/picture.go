package plot

import (
	"lockstep/internal/figure"
	"lockstep/internal/runlog"
)

// mostPoints is how many points of a curve are drawn. Of more, every other one is left out, and so on.
const mostPoints = 2000

// picture writes the loss, the validation's, the rate and the learning rate of runs by steps into a file: PNG where its name
// ends in .png, else SVG. replace says whether it may take the place of one that is there.
func picture(file string, replace bool, runs ...runlog.Run) error {
	panels := []figure.Panel{
		{Title: "loss", X: "step", Y: "nats a token", LinearX: true, LinearY: true, Tight: true, NoMarks: true},
		{Title: "loss of the validation", X: "step", Y: "nats a token", LinearX: true, LinearY: true, Tight: true},
		{Title: "rate", X: "step", Y: "tokens a second", LinearX: true, LinearY: true, NoMarks: true},
		{Title: "learning rate", X: "step", Y: "learning rate", LinearX: true, LinearY: true, NoMarks: true},
	}
	for _, r := range runs {
		every := (len(r.Steps) + mostPoints - 1) / mostPoints
		for i, s := range r.Steps {
			for p, y := range []*float64{s.Loss, s.ValLoss, s.TokS, s.LR} {
				if last := i == len(r.Steps)-1; y != nil && (i%every == 0 || last || p == 1) {
					panels[p].Add(r.Name, float64(s.Step), *y)
				}
			}
		}
	}
	return figure.Write(file, replace, panels...)
}
