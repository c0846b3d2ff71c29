// Package cli is what a person meets who types a program's name in a terminal: its
// flags in groups for --help, completions for the shell, advice for what is misspelt,
// and one live line below the log.
package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/readable"
)

// These are the groups of flags that every program has. A flag without a group is the
// program's own.
const (
	Framework = "Flags of the framework"
	Output    = "Flags of what is reported, and where"
)

// These are annotations of flags.
const (
	groupOf   = "lockstep_group"
	choicesOf = "lockstep_choices"
)

// Group puts flags of fs under a heading of their own. It panics if fs lacks one.
func Group(fs *pflag.FlagSet, heading string, names ...string) {
	for _, name := range names {
		annotate(fs, name, groupOf, heading)
	}
}

// Choices sets the values that a flag of fs may have, for completion and Known. It panics if fs
// lacks the flag.
func Choices(fs *pflag.FlagSet, name string, values ...string) {
	annotate(fs, name, choicesOf, values...)
}

// Known refuses a given flag of fs whose text is none of its Choices.
func Known(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		if known := f.Annotations[choicesOf]; err == nil && len(known) > 0 && f.Value.Type() == "string" {
			_, err = OneOf(f.Name, f.Value.String(), known...)
		}
	})
	return err
}

// OneOf returns the place of a flag's value among those that it may have.
func OneOf(flag, value string, known ...string) (int, error) {
	i, last := slices.Index(known, value), len(known)-1
	if i < 0 {
		return 0, fmt.Errorf("--%s %s: unknown, want %s or %s", flag, value, strings.Join(known[:last], ", "),
			known[last])
	}
	return i, nil
}

func annotate(fs *pflag.FlagSet, name, key string, values ...string) {
	if err := fs.SetAnnotation(name, key, values); err != nil {
		panic("cli: " + err.Error())
	}
}

// Heading returns the heading that Group has given to a flag, or "".
func Heading(f *pflag.Flag) string {
	if of := f.Annotations[groupOf]; len(of) > 0 {
		return of[0]
	}
	return ""
}

// About makes --help begin with what the program does, and with lines that one may type.
func About(fs *pflag.FlagSet, does string, examples ...string) {
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "%s\n\nExamples:\n", does)
		for _, line := range examples {
			fmt.Fprintf(fs.Output(), "  %s\n", line)
		}
		fmt.Fprintln(fs.Output())
	}
}

// Parse reads the command line of a program on one rank, from args without the program's name. It
// ends the process after help or completions, and with one line and status 2 after a bad flag.
func Parse(fs *pflag.FlagSet, args []string) {
	fs.Init(fs.Name(), pflag.ContinueOnError)
	fs.SortFlags = false
	if CompletionAsked(args) {
		AnswerCompletion(Stdout, fs, args)
		os.Exit(Ended(fs.Name(), 0))
	}
	preface := fs.Usage
	fs.Usage = func() {
		fs.SetOutput(Stdout)
		if preface != nil {
			preface()
		}
		fmt.Fprint(Stdout, Flags(fs, "Flags of "+fs.Name()))
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		os.Exit(Ended(fs.Name(), 0))
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %s\n", fs.Name(), readable.Text(Advise(fs, err).Error()))
		os.Exit(2)
	}
}

// Flags describes the flags of fs, by groups and as wide as the terminal. own is the heading of
// those without a group.
func Flags(fs *pflag.FlagSet, own string) string { return render(fs, own, flagsWidth()) }

const (
	widest    = 120 // columns
	narrowest = 60
)

// flagsWidth returns how wide a line may be.
func flagsWidth() int { return min(max(Width(os.Stdout.Fd(), widest), narrowest), widest) }

func render(fs *pflag.FlagSet, own string, columns int) string {
	var headings []string
	groups := map[string]*pflag.FlagSet{}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		heading := Heading(f)
		if heading == "" {
			heading = own
		}
		if groups[heading] == nil {
			headings = append(headings, heading)
			groups[heading] = pflag.NewFlagSet("", pflag.ContinueOnError)
			groups[heading].SortFlags = false
		}
		shown := *f
		shown.Value = value{f.Value}
		if f.DefValue == "0s" || f.DefValue == "[]" {
			shown.DefValue = ""
		}
		groups[heading].AddFlag(&shown)
	})
	for _, last := range []string{Framework, Output} { // the same order in every program
		if i := slices.Index(headings, last); i >= 0 {
			headings = append(slices.Delete(headings, i, i+1), last)
		}
	}
	var b strings.Builder
	for i, heading := range headings {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s:\n%s", heading, groups[heading].FlagUsagesWrapped(columns))
	}
	return b.String()
}

// value names a flag's value by what a user types, instead of by Go's type.
type value struct{ pflag.Value }

func (v value) Type() string {
	switch t := v.Value.Type(); t {
	case "int", "int32", "int64", "uint", "uint32", "uint64":
		return "N"
	case "float32", "float64":
		return "X"
	case "string":
		return "TEXT"
	case "stringArray":
		return "TEXT"
	case "stringSlice":
		return "TEXT,..."
	case "duration":
		return "TIME"
	default:
		return t
	}
}
