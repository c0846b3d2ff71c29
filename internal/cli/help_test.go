package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// flags returns a program with a flag of every kind that Lockstep's programs have.
func flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("app", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Int("rows", 10, "rows of the matrix")
	fs.Float64("lr", 0.5, "learning rate")
	fs.String("device", "auto", "where buffers live: auto, cuda or host")
	fs.StringArray("data", nil, "text to learn from; repeatable")
	fs.Duration("timeout", 0, "how long a collective may take, such as 90s")
	fs.String("json", "", "append results to `FILE`")
	fs.String("checkpoint", "", "`DIR` to save the run in")
	fs.BoolP("graph", "g", false, "capture the step: once")
	fs.Int("secret", 0, "not for people")
	fs.Lookup("secret").Hidden = true
	Choices(fs, "device", "auto", "cuda", "host")
	Group(fs, Output, "json")
	Group(fs, Framework, "device", "timeout")
	return fs
}

func TestFlags(t *testing.T) {
	const want = `Flags of app:
      --rows N           rows of the matrix (default 10)
      --lr X             learning rate (default 0.5)
      --data TEXT        text to learn from; repeatable
      --checkpoint DIR   DIR to save the run in
  -g, --graph            capture the step: once

Flags of the framework:
      --device TEXT    where buffers live: auto, cuda or host (default auto)
      --timeout TIME   how long a collective may take, such as 90s

Flags of what is reported, and where:
      --json FILE   append results to FILE
`
	if got := render(flags(), "Flags of app", 100); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	fs := flags()
	fs.Duration("wait", time.Minute, strings.Repeat("a word ", 40))
	for line := range strings.Lines(render(fs, "Flags of app", 70)) {
		if len(line) > 71 {
			t.Errorf("a line of %d columns on a terminal of 70: %s", len(line)-1, line)
		}
	}
}

func TestComplete(t *testing.T) {
	for _, tc := range []struct {
		words     string
		want      string // names, with blanks between them
		directive int
	}{
		{"--d", "--device --data", Nothing},
		{"--data x --d", "--device --data", Nothing}, // may be given again
		{"--device host --d", "--data", Nothing},
		{"--device=host --rows=3 --d", "--data", Nothing},
		{"--device ", "auto cuda host", Nothing},
		{"--device c", "cuda", Nothing},
		{"--device=h", "host", Nothing},
		{"--graph --r", "--rows", Nothing}, // takes no value
		{"--graph=", "true false", Nothing},
		{"-g --r", "--rows", Nothing},
		{"--json r", "", AnyFile},
		{"--json=r", "", AnyFile},
		{"--checkpoint ", "", Folders},
		{"--rows ", "", Nothing},
		{"--unknown=", "", Nothing},
		{"word", "", Nothing},
		{"--h", "--help", Nothing},
		{"", "--rows --lr --device --data --timeout --json --checkpoint --graph --help", Nothing},
	} {
		lines, directive := Complete(flags(), strings.Split(tc.words, " "))
		var names []string
		for _, l := range lines {
			name, _, _ := strings.Cut(l, "\t")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != tc.want || directive != tc.directive {
			t.Errorf("%q: %q and %d, want %q and %d", tc.words, got, directive, tc.want, tc.directive)
		}
	}
}

// The text behind a flag is a whole phrase, also if the description begins with a name or
// ends in a remark.
func TestDescribed(t *testing.T) {
	for text, want := range map[string]string{
		"where buffers live: auto, cuda or host":       "where buffers live",
		"text to learn from; repeatable":               "text to learn from",
		"Slurm: cores for each rank (default: all)":    "Slurm: cores for each rank",
		"hosts: NAME[:SLOTS],...":                      "hosts: NAME[:SLOTS],...",
		"serve a page at [HOST]:PORT of rank 0; there": "serve a page at [HOST]:PORT of rank 0",
		"nodes (default: the hosts, or 1)":             "nodes",
	} {
		fs := pflag.NewFlagSet("app", pflag.ContinueOnError)
		fs.Int("flag", 0, text)
		if got := described(fs.Lookup("flag")); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestAnswer(t *testing.T) {
	for request, want := range map[string]string{
		CompleteRequest: "--graph\tcapture the step\n:4\n", CompleteNamesRequest: "--graph\n:4\n",
	} {
		args := []string{request, "--g"}
		var out bytes.Buffer
		if !CompletionAsked(args) {
			t.Errorf("%q does not ask", args)
		}
		if AnswerCompletion(&out, flags(), args); out.String() != want {
			t.Errorf("%s: %q, want %q", request, &out, want)
		}
	}
	if args := []string{CompleteRequest}; CompletionAsked(args) || CompletionAsked(slices.Insert(args, 0, "--rows")) {
		t.Error("a program is asked for completions without a word to complete")
	}
}
