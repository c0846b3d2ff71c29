// Package plot is `launch plot`: runs of train in one picture.
package plot

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/outfile"
	"lockstep/internal/runlog"
	"lockstep/launch/exit"
)

// Command is `launch plot`.
func Command() *cobra.Command {
	var out string
	var force bool
	cmd := &cobra.Command{
		Use:   "plot [flags] RUN...",
		Short: "Draw the loss, the validation, the rate and the learning rate of runs, to compare them",
		Long: `Draw the loss, the loss of the validation, the rate and the learning rate of runs of train by their steps, in one
picture. A RUN is the folder of a run (train --run-dir), or a file that train --json has written.`,
		Example: `  launch plot runs/a runs/b
  launch plot --out compared.png slow.jsonl fast.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := draw(out, force, args)
			if err != nil {
				return err
			}
			if outfile.IsFile(file) {
				fmt.Fprintln(cmd.OutOrStdout(), file)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "plot.svg", "`FILE` to write: SVG, or PNG where its name ends in .png; - is standard output")
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	return cmd
}

// draw writes the picture of the runs and returns its name. Errors of what was given are exit.Usage.
func draw(out string, force bool, paths []string) (string, error) {
	if len(paths) == 0 {
		return "", usage("no run is named: launch plot runs/a runs/b")
	}
	// A device or a pipe gets an SVG, whatever its name.
	if ext := strings.ToLower(filepath.Ext(out)); ext != ".svg" && ext != ".png" && outfile.IsFile(out) {
		return "", usage("--out %s: want a name that ends in .svg or .png", out)
	}
	var runs []runlog.Run
	names := map[string]bool{}
	for _, path := range paths {
		r, err := runlog.Read(path)
		if err != nil {
			return "", exit.Usage{Err: err}
		}
		if names[r.Name] { // runs of one name in several folders
			r.Name = path
		}
		names[r.Name] = true
		runs = append(runs, r)
	}
	if err := outfile.Check(out, force); err != nil {
		return "", exit.Usage{Err: outfile.About("--out", err, "--force")}
	}
	return out, picture(out, force, runs...)
}

func usage(format string, args ...any) error { return exit.Usage{Err: fmt.Errorf(format, args...)} }
