package inspect

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/cli"
	"lockstep/internal/runfiles"
)

// PlotCommand is `launch plot`.
func PlotCommand() *cobra.Command {
	var a axes
	var out, log string
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "plot [flags] RUN...",
		Short: "Draw what runs have measured, to compare them",
		Long: `Draw the numbers that programs have measured (World.Emit) in one picture, by their names and with their
units. A RUN is the folder of a run (--run-dir), or a file that --json has written; each is a curve.

Without --y all numbers are drawn that change, of eight names at most. Without --x they are drawn by the field step or,
where a run has none, by the lines of its log.`,
		Example: `  launch plot runs/a runs/b
  launch plot --y residual --log y solver.jsonl
  launch plot --x elements --y gbps --log x reduce.jsonl
  launch plot --out compared.png slow.jsonl fast.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, axis := range log {
				switch axis {
				case 'x':
					a.logX = true
				case 'y':
					a.logY = true
				default:
					return usage("--log %s: want x, y or xy", log)
				}
			}
			note, err := drawRuns(out, overwrite, a, args)
			if err != nil {
				return err
			}
			if note != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), note)
			}
			if runfiles.IsFile(out) {
				fmt.Fprintln(cmd.OutOrStdout(), out)
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&out, "out", "o", "plot.svg",
		"`FILE` to write: SVG, or PNG where its name ends in .png; - is standard output")
	fs.BoolVar(&overwrite, "overwrite", false, "replace a file that is there")
	fs.StringVar(&a.x, "x", "", "`FIELD` of the horizontal axis (default step or, where a run has none, the line)")
	fs.StringSliceVar(&a.y, "y", nil, "`FIELD,...` to draw (default those that change)")
	fs.StringVar(&log, "log", "", "`AXES` that are logarithmic: x, y or xy")
	return cmd
}

// drawRuns writes the picture of the runs, and returns a remark on it. Errors of the input
// are cli.Usage.
func drawRuns(out string, overwrite bool, a axes, paths []string) (note string, err error) {
	if len(paths) == 0 {
		return "", usage("no run is named: launch plot runs/a runs/b")
	}
	// A device or a pipe gets an SVG, whatever its name.
	if ext := strings.ToLower(filepath.Ext(out)); ext != ".svg" && ext != ".png" && runfiles.IsFile(out) {
		return "", usage("--out %s: want a name that ends in .svg or .png", out)
	}
	var runs []*measured
	names := map[string]bool{}
	for _, path := range paths {
		r, err := readRun(path)
		if err != nil {
			return "", cli.Usage{Err: err}
		}
		if names[r.name] { // runs of one name in several folders
			r.name = path
		}
		names[r.name] = true
		runs = append(runs, r)
	}
	if err := a.complete(runs); err != nil {
		return "", err
	}
	if err := runfiles.Check(out, overwrite); err != nil {
		return "", cli.Usage{Err: runfiles.About("--out", err, "--overwrite")}
	}
	return a.picture(out, overwrite, runs)
}

func usage(format string, args ...any) error { return cli.Usage{Err: fmt.Errorf(format, args...)} }
