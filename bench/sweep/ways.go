package sweep

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/bench/measure"
)

// waysOps are the calls that NCCL has symmetric kernels for, with their names in Go.
var waysOps = []struct{ op, name string }{
	{"allreduce", "AllReduce"}, {"allgather", "AllGather"}, {"reducescatter", "ReduceScatter"},
}

// The sides of bench ways: --symmetric and --symmetric-memory of each.
var waysSides = [...][2]string{{"always", "on"}, {"never", "on"}, {"auto", "off"}}

// Ways is bench ways. It measures, for each number of ranks, which sizes NCCL's symmetric kernels
// carry faster than its plain algorithms and kernels between peers. It prints a row of the table in
// spmd/internal/transport/route/ways.go.
func Ways() error {
	s := sweep{}
	fs := pflag.NewFlagSet("bench ways", pflag.ExitOnError)
	s.Flags.Register(fs, "symmetric")
	fs.IntSliceVar(&s.ranks, "ranks", nil, "numbers of ranks (default 2 up to all GPUs)")
	if err := measure.Parse(fs); err != nil {
		return err
	}
	if err := s.Prepare(); err != nil {
		return err
	}
	if len(s.GPUs) == 0 {
		return errors.New(s.WhyNoGPU)
	}
	s.Set, s.Graph, s.Iters, s.Warmup = measure.GPUSet, measure.Choice{false, true}, measure.GPUIters, measure.GPUWarmup
	for n := 2; !fs.Changed("ranks") && n <= len(s.GPUs); n++ {
		s.ranks = append(s.ranks, n)
	}
	sizes, err := measure.Sizes(8, 256<<20, 2)
	if err != nil {
		return err
	}
	for _, n := range s.ranks {
		var spans []string
		for _, o := range waysOps {
			op, err := measure.OperationOf(o.op)
			if err != nil {
				return err
			}
			var us [len(waysSides)][]measure.Measured
			for i, side := range waysSides {
				if err := s.Symmetric.Set(side[1]); err != nil {
					return err
				}
				list := measure.Cases([]measure.Operation{op}, measure.DTypes[:1], sizes, n, s.callsOf)
				cmd, err := s.ranksCommand(n, list)
				if err != nil {
					return err
				}
				if us[i], err = s.measurements(append(cmd, "--symmetric", side[0])); err != nil {
					return err
				}
			}
			if from, to := bestSpan(us[0], us[1:]...); to > 0 {
				spans = append(spans, fmt.Sprintf("coll.%s: {%s, %s}", o.name, goSize(from), goSize(to)))
			}
		}
		fmt.Printf("\t{[]string{%q}, %d, spans{%s}},\n", s.GPUs[0], n, strings.Join(spans, ", "))
	}
	return nil
}

// goSize is a size as the table has it.
func goSize(bytes int) string {
	switch {
	case bytes == math.MaxInt:
		return "above"
	case bytes >= 1<<20:
		return fmt.Sprintf("%d * mib", bytes>>20)
	}
	return fmt.Sprint(bytes)
}

// bestSpan returns the sizes, from the first to the last, for which a way shall be taken instead of
// others: so that the sum over all sizes of how far the taken way is from the fastest is the least.
// That of a size is the larger of those in a graph and by calls. Beyond the largest size it goes
// on; to is 0 if there is no such size.
func bestSpan(way []measure.Measured, others ...[]measure.Measured) (from, to int) {
	var sizes []int
	var off [][2]float64 // of the way, and of the others, by size
	for _, m := range way {
		least := math.Inf(1)
		for _, other := range others {
			for _, o := range other {
				if o.Bytes == m.Bytes && o.Graph == m.Graph {
					least = min(least, o.MedianUS)
				}
			}
		}
		if len(sizes) == 0 || sizes[len(sizes)-1] != m.Bytes {
			sizes, off = append(sizes, m.Bytes), append(off, [2]float64{})
		}
		at := &off[len(off)-1]
		at[0], at[1] = max(at[0], m.MedianUS/least-1), max(at[1], least/m.MedianUS-1)
	}
	best := 0.0
	for i := range sizes {
		gain := 0.0
		for j := i; j < len(sizes); j++ {
			if gain += off[j][1] - off[j][0]; gain > best {
				best, from, to = gain, sizes[i], sizes[j]
			}
		}
	}
	if len(sizes) > 0 && to == sizes[len(sizes)-1] {
		to = math.MaxInt
	}
	return from, to
}
