package cli

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestAdvise(t *testing.T) {
	fs := pflag.NewFlagSet("app", pflag.ContinueOnError)
	for _, name := range []string{"rows", "cols", "global-batch", "batch", "timeout", "json"} {
		fs.Int(name, 0, "")
	}
	for arg, want := range map[string]string{
		"--row=1": "rows", "--rwos=1": "rows", "--colls=1": "cols", "--globalbatch=1": "global-batch",
		"--global_batch=1": "global-batch",
		"--time=1":         "timeout", "--colour=1": "", "--x=1": "", "--jsn=1": "json", "--ab=1": "",
	} {
		err := Advise(fs, fs.Parse([]string{arg}))
		_, got, near := strings.Cut(err.Error(), "; did you mean --")
		if all := strings.HasSuffix(err.Error(), ": --help shows all"); all == near {
			t.Errorf("%s: %v, want what is near or what shows all", arg, err)
		}
		if got = strings.TrimSuffix(got, "?"); got != want {
			t.Errorf("%s: %v, want --%s", arg, err, want)
		}
	}
	if err := Advise(fs, fs.Parse([]string{"--rows=many"})); err == nil || strings.Contains(err.Error(), "mean") {
		t.Errorf("a value of the wrong type: %v", err)
	}
	fs.String("summary", "auto", "say it: `MODE` on or off")
	if err := Advise(fs, fs.Parse([]string{"--summary"})); err == nil ||
		err.Error() != "flag needs an argument: --summary (say it: MODE on or off)" {
		t.Errorf("no value: %v", err)
	}
}
