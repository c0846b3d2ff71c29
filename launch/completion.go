package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/cli"
	"lockstep/internal/readable"
	"lockstep/launch/plan"
)

// programs are completed if no others are named.
var programs = []string{"bench", "matvec", "reduce", "stencil", "train"}

// bashOwn are the functions of bash.sh, which stand before the scripts for bash.
//
//go:embed bash.sh
var bashOwn string

// without makes cobra's script for bash call the functions of bash.sh instead of those of the
// package bash-completion, which many machines lack. If that package is loaded, the script still
// begins with its _init_completion.
var without = strings.NewReplacer(`_get_comp_words_by_ref "$@" cur prev words cword`, "__lockstep_words",
	"_filedir", "__lockstep_filedir")

// shells write the script that completes one command.
var shells = map[string]func(cmd *cobra.Command, w io.Writer) error{
	"bash": func(cmd *cobra.Command, w io.Writer) error {
		var script bytes.Buffer
		if err := cmd.GenBashCompletionV2(&script, true); err != nil {
			return err
		}
		_, err := without.WriteString(w, script.String())
		return err
	},
	"zsh":  func(cmd *cobra.Command, w io.Writer) error { return cmd.GenZshCompletion(w) },
	"fish": func(cmd *cobra.Command, w io.Writer) error { return cmd.GenFishCompletion(w, true) },
}

// completion is `launch completion`: shells then complete the flags of launch and of programs.
func completion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish [PROGRAM...]",
		Short: "Print a script by which the shell completes flags of launch and of programs",
		Long: `Print a script by which the shell completes commands and flags of launch, and the flags of programs
that use Lockstep. The script asks the program itself for its flags. Without names of programs it
is for ` + strings.Join(programs, ", ") + `. A program is found by its name, in whatever folder it is; behind
"launch run ... --" every program that uses Lockstep is completed.`,
		Example: `  source <(launch completion bash)                       # in ~/.bashrc
  source <(launch completion zsh)                        # in ~/.zshrc, behind compinit
  launch completion fish | source                        # in ~/.config/fish/config.fish
  source <(launch completion bash heat integral)         # for programs of your own`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || shells[args[0]] == nil {
				return cli.Usage{Err: fmt.Errorf("launch completion: want bash, zsh or fish, and then " +
					"names of programs")}
			}
			return writeScript(cmd.OutOrStdout(), cmd.Root(), args[0], args[1:])
		},
	}
}

// writeScript prints the script of a shell for launch and the named programs.
func writeScript(w io.Writer, root *cobra.Command, shell string, names []string) error {
	if len(names) == 0 {
		names = programs
	}
	var script bytes.Buffer // whole, or nothing
	if shell == "bash" {
		script.WriteString(bashOwn)
	}
	if err := shells[shell](root, &script); err != nil {
		return err
	}
	for _, name := range names {
		if name == "" || strings.Trim(name, readable.Letters+"-_.") != "" || name[0] == '-' {
			return cli.Usage{Err: fmt.Errorf("launch completion: %q is no name of a program: leave "+
				"out its folder", name)}
		}
		if err := shells[shell](&cobra.Command{Use: name}, &script); err != nil {
			return err
		}
	}
	_, err := w.Write(script.Bytes())
	return err
}

// answerTime is how long a program may take to answer what completes its arguments.
const answerTime = 3 * time.Second

// complete prints the completions of the last of args, if that belongs to a command that reads its
// own flags and then a program with arguments. It returns false if the rest of launch is to answer.
func complete(w io.Writer, root *cobra.Command, args []string) bool {
	if !cli.CompletionAsked(args) || len(args) < 3 {
		return false
	}
	cmd, _, err := root.Find(args[1:2])
	if err != nil || cmd == root || !cmd.DisableFlagParsing {
		return false
	}
	cmd.InitDefaultHelpFlag()
	words := args[2:]
	lines, directive := cli.Complete(cmd.Flags(), words)
	if at := slices.Index(words[:len(words)-1], "--"); at >= 0 {
		lines, directive = completeBehind(words[at+1:])
	} else if last := words[len(words)-1]; directive == cli.Nothing && last != "" && strings.HasPrefix("--", last) {
		lines = append(lines, "--\tthe program and its arguments stand behind it")
	}
	cli.PrintCompletions(w, lines, directive, args[0] == cli.CompleteRequest)
	return true
}

// completeBehind completes the name of a program, then its arguments. A program that does not use
// Lockstep is not started: it would not know that it is only asked.
func completeBehind(words []string) (lines []string, directive int) {
	if len(words) == 1 || !plan.UsesLockstep(words[0]) {
		return nil, cli.AnyFile
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], slices.Insert(words[1:], 0, cli.CompleteRequest)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, cli.AnyFile
	}
	lines = strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	code, ok := strings.CutPrefix(lines[len(lines)-1], ":")
	directive, err = strconv.Atoi(code)
	if !ok || err != nil {
		return nil, cli.AnyFile
	}
	return lines[:len(lines)-1], directive
}
