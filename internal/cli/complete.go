package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// A script of `launch completion` asks a program for completions by its first argument: with
// descriptions, or without.
const (
	CompleteRequest      = "__complete"
	CompleteNamesRequest = "__completeNoDesc"
)

// Directives tell the shell what to do with the completions. Source: cobra's completions.go,
// ShellCompDirective.
const (
	AnyFile = 0 // names of files, if there are none
	Nothing = 4
	Folders = 16 // names of folders only
)

// CompletionAsked reports whether the arguments of a program ask for completions.
func CompletionAsked(args []string) bool {
	return len(args) > 1 && (args[0] == CompleteRequest || args[0] == CompleteNamesRequest)
}

// AnswerCompletion prints the completions of the last of args, for which CompletionAsked is true,
// as the scripts of cobra read them.
func AnswerCompletion(w io.Writer, fs *pflag.FlagSet, args []string) {
	lines, directive := Complete(fs, args[1:])
	PrintCompletions(w, lines, directive, args[0] == CompleteRequest)
}

// PrintCompletions prints completions, each a word and, behind a tabulator, its description.
func PrintCompletions(w io.Writer, lines []string, directive int, described bool) {
	for _, line := range lines {
		if !described {
			line, _, _ = strings.Cut(line, "\t")
		}
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, ":%d\n", directive)
}

// Complete returns what may replace the last of words, for a program whose settings are all flags.
func Complete(fs *pflag.FlagSet, words []string) (lines []string, directive int) {
	last := words[len(words)-1]
	before := words[:len(words)-1]
	if name, typed, ok := strings.Cut(last, "="); ok && strings.HasPrefix(name, "-") {
		return values(lookup(fs, name), typed)
	}
	if len(before) > 0 {
		if f := lookup(fs, before[len(before)-1]); f != nil && f.NoOptDefVal == "" {
			return values(f, last)
		}
	}
	if last != "" && last[0] != '-' {
		return nil, Nothing
	}
	fs.VisitAll(func(f *pflag.Flag) {
		name := "--" + f.Name
		repeats := strings.HasSuffix(f.Value.Type(), "Array") || strings.HasSuffix(f.Value.Type(), "Slice")
		given := slices.ContainsFunc(before, func(w string) bool { return w == name || strings.HasPrefix(w, name+"=") })
		if !f.Hidden && strings.HasPrefix(name, last) && (repeats || !given) {
			lines = append(lines, name+"\t"+described(f))
		}
	})
	if fs.Lookup("help") == nil && strings.HasPrefix("--help", last) {
		lines = append(lines, "--help\tshow all flags")
	}
	return lines, Nothing
}

// lookup returns the flag that a word names, or nil.
func lookup(fs *pflag.FlagSet, word string) *pflag.Flag {
	if name, ok := strings.CutPrefix(word, "--"); ok {
		return fs.Lookup(name)
	}
	if name, ok := strings.CutPrefix(word, "-"); ok && len(name) == 1 {
		return fs.ShorthandLookup(name)
	}
	return nil
}

func values(f *pflag.Flag, typed string) (lines []string, directive int) {
	if f == nil {
		return nil, Nothing
	}
	choices := f.Annotations[choicesOf]
	if f.Value.Type() == "bool" {
		choices = []string{"true", "false"}
	}
	for _, c := range choices {
		if strings.HasPrefix(c, typed) {
			lines = append(lines, c)
		}
	}
	switch kind, _ := pflag.UnquoteUsage(f); {
	case len(choices) > 0:
		return lines, Nothing
	case kind == "FILE":
		return nil, AnyFile
	case kind == "DIR" || kind == "FOLDER":
		return nil, Folders
	default:
		return nil, Nothing
	}
}

// described returns the first part of a flag's description, which fits behind it on a line of a
// terminal. It leaves out a part that only says where the flag counts ("Slurm: ...").
func described(f *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(f)
	text, _, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, " (default")
	for _, end := range []string{"; ", ": "} {
		if first, _, ok := strings.Cut(text, end); ok && len(strings.Fields(first)) > 2 {
			text = first
		}
	}
	return text
}
