package job

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
)

// parse reads the command line. --help prints once for the job.
func parse(fs *pflag.FlagSet, args []string, speaks bool) error {
	out := io.Writer(cli.Stdout)
	if !speaks {
		out = io.Discard
	}
	fs.Init(fs.Name(), pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	preface := fs.Usage
	fs.Usage = func() {
		if preface != nil {
			fs.SetOutput(out)
			preface()
		}
		fmt.Fprint(out, cli.Flags(fs, "Flags of "+fs.Name()))
	}
	if err := fs.Parse(args); err != nil {
		if hint := misplaced(fs, args); hint != nil {
			return hint
		}
		return cli.Advise(fs, err)
	}
	if fs.NArg() > 0 {
		if flag := withoutEquals(fs, args); flag != "" {
			return fmt.Errorf("unexpected argument %q: type --%s=%s", fs.Arg(0), flag, fs.Arg(0))
		}
		return fmt.Errorf("unexpected argument %q: all settings are flags, see --help", fs.Arg(0))
	}
	if f := fs.Lookup("ranks"); f != nil && f.Changed && f.Value.String() == "0" {
		return fmt.Errorf("--ranks 0: want 1 to %d", mostRanks)
	}
	if t := fs.Lookup("timeout"); t != nil && t.Changed && t.Value.String() == "0s" {
		return fmt.Errorf("--timeout 0: must be at least %v; there is no way to wait for ever", leastTimeout)
	}
	return nil
}

// withoutEquals finds a value that was typed behind a flag without an equals sign, when the flag
// needs no value and so takes none. It returns the name of the flag; "" if there is none.
func withoutEquals(fs *pflag.FlagSet, args []string) string {
	at := slices.Index(args, fs.Arg(0))
	if at < 1 {
		return ""
	}
	name, ok := strings.CutPrefix(args[at-1], "--")
	if f := fs.Lookup(name); !ok || f == nil || f.NoOptDefVal == "" {
		return ""
	}
	return name
}

// ofLauncher are flags that people give to the program, but mean for the command that starts it.
var ofLauncher = map[string]string{
	"np": "mpirun", "n": "mpirun", "H": "mpirun", "host": "mpirun", "hostfile": "mpirun",
	"machinefile": "mpirun", "x": "mpirun",
	"map-by": "mpirun", "bind-to": "mpirun", "rank-by": "mpirun", "oversubscribe": "mpirun",
	"allow-run-as-root": "mpirun", "mca": "mpirun",
	"report-bindings": "mpirun", "tag-output": "mpirun", "npernode": "mpirun", "ppn": "mpirun", "display-map": "mpirun",
	"ntasks": "srun", "nodes": "srun", "N": "srun", "mpi": "srun", "gpus-per-node": "srun",
	"ntasks-per-node": "srun", "partition": "srun",
	"nproc_per_node": "torchrun", "nproc-per-node": "torchrun", "nnodes": "torchrun",
}

// misplaced says which argument is a flag of a launcher and not one of the program; nil if there is
// none.
func misplaced(fs *pflag.FlagSet, args []string) error {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, _, whole := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		tool := ofLauncher[name]
		if tool == "" || !strings.HasPrefix(arg, "-") || fs.Lookup(name) != nil ||
			len(name) == 1 && fs.ShorthandLookup(name) != nil {
			continue
		}
		if tool == "torchrun" {
			return fmt.Errorf("%s is a flag of torchrun; type: mpirun -np 4 %s", arg, fs.Name())
		}
		value := ""
		if !whole && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value = " " + args[i+1]
		}
		return fmt.Errorf("%s is a flag of %s, before the program; type: %s %s%s %s", arg, tool, tool, arg,
			value, fs.Name())
	}
	return nil
}
