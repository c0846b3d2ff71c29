package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/run"
	"lockstep/internal/cli"
	"lockstep/internal/readable"
)

// planned is the first line of --help, and of completion.
const planned = "proposes how the GPUs of a machine divide a run, with the memory and the speed of each way"

// runPlan runs `train plan`, which starts no ranks and uses no GPU. It ends the process.
func runPlan(args []string) {
	fs := pflag.NewFlagSet("train plan", pflag.ContinueOnError)
	cli.About(fs, "train plan "+planned+
		".\nAll flags of train may stand beside these; what they fix is left as it is.",
		"train plan --model gpt2-xl --gpus-per-node 8",
		"train plan --model gpt2-xl --gpu A100:40 --nodes 8 --gpus-per-node 8 --global-batch 1024")
	nodes := fs.Int("nodes", 1, "nodes of the machine")
	perNode := fs.Int("gpus-per-node", 1, "GPUs of each node")
	name := fs.String("gpu", "H200", "kind of the GPUs, such as H100, or A100:40 for another memory in GB")
	format := fs.String("format", "text", "how the proposals are printed: text, or json")
	cli.Group(fs, "Flags of the machine", "nodes", "gpus-per-node", "gpu", "format")
	cli.Choices(fs, "format", "text", "json")
	o := run.New()
	o.Flags(fs)
	fs.ParseErrorsAllowlist.UnknownFlags = true // those that every program has play no part
	cli.Parse(fs, args)
	out, err := propose(o, *nodes, *perNode, *name)
	switch {
	case err != nil:
	case *format == "json":
		err = json.NewEncoder(cli.Stdout).Encode(out)
	default:
		err = showPlan(cli.Stdout, out)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "train plan: %s\n", readable.Text(err.Error()))
		os.Exit(2)
	}
	os.Exit(0)
}

// mostGPUs keeps products of numbers from overflowing.
const mostGPUs = 1 << 16

func propose(o *run.Options, nodes, perNode int, name string) (*run.Planned, error) {
	if nodes < 1 || perNode < 1 || nodes > mostGPUs || perNode > mostGPUs || nodes*perNode > mostGPUs {
		return nil, fmt.Errorf("--nodes %d --gpus-per-node %d: want from 1 to %d GPUs in all", nodes, perNode, mostGPUs)
	}
	g, err := layout.ParseGPU(name)
	if err != nil {
		return nil, err
	}
	return o.Plan(layout.NodesOf(g, perNode), nodes*perNode)
}

// showPlan prints proposals for people.
func showPlan(w io.Writer, p *run.Planned) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s parameters on %d x %s with %d GB each; the fastest first\n",
		thousands(float64(p.Params)), p.Ranks, p.GPU, p.Memory/1e9)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, x := range p.Proposals {
		messages, bubble := "", ""
		if p.Ranks > 1 {
			messages = "messages " + parts(x.Messages)
		}
		if x.Bubble > 0 {
			bubble = fmt.Sprintf("bubble %.0f %%", 100*x.Bubble)
		}
		speed, most := thousands(x.Low), thousands(x.High)
		if most != speed {
			speed += " to " + most
		}
		fmt.Fprintf(t, "  %s\t%.1f GB\t%s tokens/s\t%s\t%s\n",
			strings.Join(x.Flags, " "), float64(x.Bytes)/1e9, speed, messages, bubble)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(p.Proposals) == 0 {
		b.WriteString("  no way fits: more GPUs are needed, or those with more memory, or a smaller --batch, --seq " +
			"or model\n")
	}
	for line := range strings.Lines(b.String()) { // the table pads
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// parts prints two parts of a whole in per cent, the lesser first, or one if they are equal.
func parts(x [2]float64) string {
	least, most := fmt.Sprintf("%.0f", 100*x[0]), fmt.Sprintf("%.0f", 100*x[1])
	if most != least {
		least += " to " + most
	}
	return least + " %"
}

// thousands prints a number with three digits.
func thousands(x float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "B"}, {1e6, "M"}, {1e3, "k"}} {
		if x >= 0.9995*unit.size {
			return fmt.Sprintf("%.3g%s", x/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.3g", x)
}
