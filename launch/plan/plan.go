// Package plan is `launch plan` and `launch run`: the command lines that start a program on several
// ranks, each option with its reason, and the command that executes them.
//
// A line is a list of groups of words, each group with a reason. plan prints it, run starts it.
package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/readable"
)

// Group is words of a command line that belong together, and their reason.
type Group struct {
	Words []string `json:"words"`
	Why   string   `json:"why"`
}

// Line is a command line.
type Line struct {
	Launcher string  `json:"launcher"` // openmpi4, openmpi5, mpich, slurm
	Version  string  `json:"version"`  // as the launcher here says it; "" if it is not installed
	Groups   []Group `json:"groups"`
	Refused  string  `json:"refused,omitempty"` // why launch run would not start it on this machine
}

func (l *Line) add(why string, words ...string) { l.Groups = append(l.Groups, Group{words, why}) }

// Words returns the line as execve takes it.
func (l Line) Words() []string {
	var words []string
	for _, g := range l.Groups {
		words = append(words, g.Words...)
	}
	return words
}

// String returns the line as a shell takes it.
func (l Line) String() string {
	return quote(l.Words())
}

func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		plain := strings.TrimLeft(w, readable.Letters+"_@%+=:,./-") == ""
		if quoted[i] = w; !plain || w == "" {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// Command is `launch plan`.
func Command() *cobra.Command {
	o := &options{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "plan [flags] -- PROGRAM [ARGS]",
		Short: "Print the lines or the batch file for a job, each option with its reason",
		Long: `Print the lines for mpirun and srun, and the file for sbatch, each option with its reason.
If the job has GPUs and the program a command plan, as bin/train has, it is asked for settings that fit and are fast:
how the ranks divide the model, with the memory of each way and an estimate of its speed.`,
		Example: `  launch plan --nodes 2 --gpus-per-node 8 -- bin/train --model gpt2
  launch plan -np 4 -H n1:2,n2:2 --launcher all -- bin/reduce
  launch plan --launcher slurm --array 10 -- bin/train --seed {}`,
		DisableFlagParsing: true, // for -np, which pflag would take for -n p
	}
	o.flags(cmd.Flags())
	o.batchFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&o.gpu, "gpu", "",
		"kind of the GPUs that settings of the program are proposed for, such as H100, or A100:40 for another "+
			"memory in GB (default: those of this machine, else H200)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		prog, help, err := parse(cmd, args)
		if err != nil || help {
			return err
		}
		s := thisSite()
		j, err := o.job(s, prog)
		if err == nil {
			err = o.inFile(&j)
		}
		if err != nil {
			return err
		}
		lines := o.lines(j, s)
		return write(cmd.OutOrStdout(), lines, o.file(lines, j), j.settings(s, asJSON), asJSON)
	}
	return cmd
}

// lines returns the lines of the launchers that o names.
func (o *options) lines(j job, s site) []Line {
	names := []string{o.launcher}
	switch o.launcher {
	case "all":
		names = []string{"openmpi4", "openmpi5", "mpich", "slurm"}
	case "auto":
		names = []string{"openmpi4"} // the most common, if none is installed
		if here, ok := findMPI(""); ok {
			names = []string{here.name}
		}
		names = append(names, "slurm") // a plan may be for a cluster that this machine is no part of
	}
	var lines []Line
	for _, name := range names {
		l := build(find(name), j, s)
		if err := checkRoom(j, s); err != nil && name != "slurm" {
			l.Refused = err.Error()
		}
		lines = append(lines, l)
	}
	return lines
}

// write prints the lines, the batch file and the program's settings, which are JSON if all is.
func write(w io.Writer, lines []Line, file string, settings []byte, asJSON bool) error {
	if asJSON {
		type line struct {
			Line
			Words []string `json:"words"`
			Shell string   `json:"shell"`
		}
		out := struct {
			Lines    []line          `json:"lines"`
			Sbatch   string          `json:"sbatch,omitempty"`
			Settings json.RawMessage `json:"settings,omitempty"`
		}{Sbatch: file, Settings: settings}
		for _, l := range lines {
			out.Lines = append(out.Lines, line{l, l.Words(), l.String()})
		}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	}
	var b strings.Builder
	for _, l := range lines {
		state := "not installed here"
		if l.Version != "" {
			state = l.Version
		}
		fmt.Fprintf(&b, "# %s (%s)\n", l.Launcher, state)
		if l.Refused != "" {
			fmt.Fprintf(&b, "# not on this machine: %s\n", l.Refused)
		}
		fmt.Fprintf(&b, "%s\n\n", l)
		width := 0
		for _, g := range l.Groups {
			if n := len(quote(g.Words)); n <= maxColumn {
				width = max(width, n)
			}
		}
		for _, g := range l.Groups {
			fmt.Fprintf(&b, "#   %-*s  %s\n", width, quote(g.Words), g.Why)
		}
		b.WriteString("\n")
	}
	if len(settings) > 0 {
		b.WriteString("# settings of the program: ")
		b.WriteString(strings.ReplaceAll(strings.TrimSpace(string(settings)), "\n", "\n# "))
		b.WriteString("\n\n")
	}
	if file != "" {
		fmt.Fprintf(&b, "# a file for sbatch\n%s", file)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxColumn is how wide a group may be and still have its reason in line with the others'.
const maxColumn = 40
