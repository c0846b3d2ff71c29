// launch checks, plans and starts programs on several ranks, under mpirun and Slurm. Of itself it needs neither MPI nor a GPU.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/help"
	"lockstep/internal/nearest"
	"lockstep/internal/plain"
	"lockstep/internal/version"
	"lockstep/launch/completion"
	"lockstep/launch/doctor"
	"lockstep/launch/exit"
	"lockstep/launch/plan"
	"lockstep/launch/plot"
	"lockstep/launch/scaffold"
	"lockstep/launch/status"
	"lockstep/launch/trace"
)

func main() {
	root := &cobra.Command{
		Use:               "launch",
		Short:             "From a laptop to a Slurm cluster: check, plan and run programs on several ranks",
		Version:           version.Text(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetVersionTemplate("launch, of {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return exit.Usage{Err: nearest.Flag(cmd.Flags(), err)} })
	cobra.AddTemplateFunc("grouped", func(fs *pflag.FlagSet) string { return help.Flags(fs, "Flags") })
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}", "{{grouped .LocalFlags | trimTrailingWhitespaces}}", 1))
	root.AddCommand(completion.Command(), doctor.Command(), plan.Command(), plan.RunCommand(), plot.Command(), scaffold.Command(), status.Command(), trace.Command())
	if completion.Answer(os.Stdout, root, os.Args[1:]) {
		return
	}
	err := root.Execute()
	code, say := exit.Of(err)
	if say {
		fmt.Fprintln(os.Stderr, "launch:", plain.Text(err.Error()))
	}
	os.Exit(code)
}
