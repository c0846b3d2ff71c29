package job

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/internal/testkit"
)

// A quotation in the log, from a file or another process, cannot control the terminal on which it
// is read.
func TestLogIsPlain(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	testkit.Must(t, err)
	defer f.Close()
	log := (&Flags{}).Logger(0, 1, f)
	const evil = "a\x1b[2J\u009bb\u202ec"
	log.Error().Str("field", evil).Err(errors.New(evil)).Strs("list", []string{evil}).Msg(evil + "\nnext")
	b, err := os.ReadFile(f.Name())
	testkit.Must(t, err)
	if strings.ContainsFunc(string(b), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("the log holds %q", b)
	}
	if !strings.Contains(string(b), `a\x1b[2J\u009bb\u202ec`+"\nnext") {
		t.Errorf("the log holds %q, not the message", b)
	}
}

// A list that was read is written as a plain list and read again.
func FuzzParseRanks(f *testing.F) {
	for _, list := range []string{"", "all", "0", "0,3,8-11", "3-1", "-1", "1-", "+5", "0-1048575",
		"0-1048576", "7,7", "0x1"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		ranks, err := parseRanks(list)
		if err != nil {
			if ranks != nil || !strings.Contains(err.Error(), "--log-ranks") {
				t.Errorf("%q: %d ranks and error %v", list, len(ranks), err)
			}
			return
		}
		if (ranks == nil) != (list == "all") || ranks != nil && len(ranks) == 0 || len(ranks) > 1<<20 {
			t.Fatalf("%q: %d ranks, nil is %v", list, len(ranks), ranks == nil)
		}
		if ranks == nil || len(ranks) > 1000 {
			return
		}
		var plain []string
		for r := range ranks {
			plain = append(plain, strconv.Itoa(r))
		}
		again, err := parseRanks(strings.Join(plain, ","))
		if err != nil || !maps.Equal(again, ranks) {
			t.Errorf("%q: ranks %v, read again %v (%v)", list, ranks, again, err)
		}
	})
}

// Lists that would take memory and time without end.
func TestAbsurdRanks(t *testing.T) {
	for _, list := range []string{
		"9223372036854775807", "9223372036854775806-9223372036854775807", "0-9223372036854775807", "1048576",
		"0-1048575,0", strings.Repeat("0-1048575,", 2) + "1", "99999999999999999999",
	} {
		if ranks, err := parseRanks(list); err == nil {
			t.Errorf("%s: %d ranks, want an error", list, len(ranks))
		}
	}
	if ranks, err := parseRanks("0-1048575"); err != nil || len(ranks) != 1<<20 {
		t.Errorf("%d ranks, %v, want 2^20", len(ranks), err)
	}
}

// Every common flag stands under a heading of its own in --help, apart from the program's.
func TestFlagsHaveHeadings(t *testing.T) {
	fs := pflag.NewFlagSet("app", pflag.ContinueOnError)
	new(Flags).Flags(fs, nil)
	fs.VisitAll(func(f *pflag.Flag) {
		if h := cli.Heading(f); h != cli.Framework && h != cli.Output {
			t.Errorf("--%s stands under %q", f.Name, h)
		}
	})
}
