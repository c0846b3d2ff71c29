package run

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

var update = flag.Bool("update", false, "write the estimates into docs/speed.md")

const (
	page      = "../../../docs/speed.md"
	pageBegin = "<!-- estimated by go test ./apps/train/run -run TestPage -update -->\n"
	pageEnd   = "<!-- end of the estimates -->\n"
)

// docs/speed.md has the present proposals and estimates.
func TestPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| model, tokens of a sequence | GPUs | sequences | the fastest way that fits | GB | tokens/s | " +
		"messages | bubble |\n|---|---|---|---|---|---|---|---|\n")
	for _, m := range []struct{ name, flags string }{
		{"gpt2, 1,024", "--model gpt2"}, {"gpt2-medium, 1,024", "--model gpt2-medium"},
		{"gpt2-xl, 1,024", "--model gpt2-xl"},
		{"6.7 B, 2,048", "--layers 32 --heads 32 --channels 4096 --seq 2048"},
		{"175 B, 2,048", "--layers 96 --heads 96 --channels 12288 --seq 2048"},
	} {
		for _, ranks := range []int{8, 64, 1024} {
			global := map[int]int{8: 512, 64: 1024, 1024: 4096}[ranks]
			plan := planOf(t, "H200", 8, ranks,
				append(strings.Fields(m.flags), "--tokens", "gpt2", "--global-batch", fmt.Sprint(global))...)
			if len(plan.Proposals) == 0 {
				fmt.Fprintf(&b, "| %s | %d | %d | none | | | | |\n", m.name, ranks, global)
				continue
			}
			p, bubble := plan.Proposals[0], ""
			if p.Bubble > 0 {
				bubble = percent(p.Bubble)
			}
			fmt.Fprintf(&b, "| %s | %d | %d | `%s` | %.0f | %s to %s | %s to %s | %s |\n", m.name, ranks, global,
				strings.Join(p.Flags, " "), float64(p.Bytes)/1e9, millions(p.Low), millions(p.High),
				percent(p.Messages[0]), percent(p.Messages[1]), bubble)
		}
	}
	b.WriteString("\n")
	text, err := os.ReadFile(page)
	testkit.Must(t, err)
	before, rest, ok := strings.Cut(string(text), pageBegin)
	old, after, ended := strings.Cut(rest, pageEnd)
	switch {
	case !ok || !ended:
		t.Fatalf("%s has no place for the estimates", page)
	case *update:
		testkit.Must(t, os.WriteFile(page, []byte(before+pageBegin+b.String()+pageEnd+after), 0o666))
	case old != b.String():
		t.Errorf("%s has other estimates than are made now: type what stands before them", page)
	}
}

// millions prints a number of tokens a second with three digits.
func millions(x float64) string { return fmt.Sprintf("%.3g M", x/1e6) }
