package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"lockstep/bench/measure"
)

// besidePyTorch is a command that measures train on GPUs beside PyTorch.
type besidePyTorch struct {
	measure.Harness
	python, pythonDir string
}

// flags adds the flags that all such commands have. modules are what Python is to have.
func (b *besidePyTorch) flags(fs *pflag.FlagSet, modules string) {
	fs.StringVar(&b.python, "python", "python3", "the Python that has "+modules)
	fs.StringVar(&b.pythonDir, "python-sources", "bench/peers", "`DIR` of the Python programs")
	fs.StringVar(&b.Out, "out", "bench/results/train", "`DIR` for the results")
	fs.StringVar(&b.Bin, "bin", "bin", "`DIR` of the built program train")
	fs.StringVar(&b.Commit, "commit", "", "what the program was built from (default what git says here)")
}

// onGPUs calls run, which measures a group of rows by flags that are checked.
func (b *besidePyTorch) onGPUs(fs *pflag.FlagSet, group string, run func() error) error {
	defer func() { os.RemoveAll(b.Dir) }()
	if err := b.Prepare(); err != nil {
		return err
	}
	if len(b.GPUs) == 0 {
		return fmt.Errorf("%s measures GPUs: %s", fs.Name(), b.WhyNoGPU)
	}
	b.Set, b.Group, b.Line = measure.GPUSet, group, "bin/"+fs.Name()+measure.Repeatable(fs)
	return run()
}
