// Command launch checks, plans and starts programs on several ranks, under mpirun and Slurm. It
// needs neither MPI nor a GPU itself.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/internal/process"
	"lockstep/internal/readable"
	"lockstep/launch/doctor"
	"lockstep/launch/inspect"
	"lockstep/launch/plan"
	"lockstep/launch/scaffold"
)

func main() {
	root := command()
	if complete(cli.Stdout, root, os.Args[1:]) {
		os.Exit(cli.Ended("launch", 0))
	}
	code, say, err := run(root)
	if say {
		fmt.Fprintln(os.Stderr, "launch:", readable.Text(err.Error()))
	}
	os.Exit(cli.Ended("launch", code))
}

// run runs the command that the arguments ask for. It returns the exit status, and whether to print
// the error.
func run(root *cobra.Command) (code int, say bool, err error) {
	err = root.Execute()
	if err != nil && strings.HasPrefix(err.Error(), "unknown command ") { // cobra has no type for it
		err = cli.Usage{Err: unknown(root, err)}
	}
	code, say = cli.ExitStatus(err)
	return code, say, err
}

// unknown says on one line that there is no such command, and which one was probably meant.
func unknown(root *cobra.Command, err error) error {
	what, _, _ := strings.Cut(err.Error(), " for ")
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	if near := cli.Nearest(names, strings.Trim(strings.TrimPrefix(what, "unknown command "), `"`)); near != "" {
		return fmt.Errorf("%s; did you mean %s?", what, near)
	}
	return fmt.Errorf("%s: launch --help lists all", what)
}

// command is launch, with all of its commands.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "launch",
		Short:         "From a laptop to a Slurm cluster: check, plan and run programs on several ranks",
		Version:       process.Build(),
		SilenceErrors: true,
		SilenceUsage:  true,

		DisableSuggestions: true, // of cobra, on several lines
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetOut(cli.Stdout)
	root.SetVersionTemplate("launch, of {{.Version}}\nlaunch doctor says which MPI, CUDA and NCCL are here\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.Usage{Err: cli.Advise(cmd.Flags(), err)}
	})
	cobra.AddTemplateFunc("grouped", func(fs *pflag.FlagSet) string { return cli.Flags(fs, "Flags") })
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(),
		"Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}",
		"{{grouped .LocalFlags | trimTrailingWhitespaces}}", 1))
	root.AddCommand(completion(), doctor.Command(), plan.Command(), plan.RunCommand(), inspect.PlotCommand(),
		scaffold.Command(), inspect.StatusCommand(), inspect.TraceCommand())
	return root
}
