// launch checks, plans and starts programs on several ranks, under mpirun and Slurm. Of itself it needs neither MPI nor a GPU.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"lockstep/internal/plain"
	"lockstep/internal/version"
	"lockstep/launch/doctor"
	"lockstep/launch/exit"
	"lockstep/launch/plan"
	"lockstep/launch/scaffold"
	"lockstep/launch/status"
)

func main() {
	root := &cobra.Command{
		Use:               "launch",
		Short:             "From a laptop to a Slurm cluster: check, plan and run programs on several ranks",
		Version:           version.Text(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("launch, of {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.Usage{Err: err} })
	root.AddCommand(doctor.Command(), plan.Command(), plan.RunCommand(), scaffold.Command(), status.Command())
	err := root.Execute()
	code, say := exit.Of(err)
	if say {
		fmt.Fprintln(os.Stderr, "launch:", plain.Text(err.Error()))
	}
	os.Exit(code)
}
