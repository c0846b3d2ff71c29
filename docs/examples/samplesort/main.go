// Samplesort sorts numbers over all ranks. Each gets those between two limits, set by a sample.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/random"
	"lockstep/spmd/vector"
)

func main() {
	spmd.Main(pflag.NewFlagSet("samplesort", pflag.ExitOnError), sortOverRanks)
}

func sortOverRanks(_ context.Context, w *spmd.World) error {
	const n = 9001
	c, size, mine := w.Comm(), w.Size(), spmd.ShardOf(n, w.Rank(), w.Size())
	x, err := spmd.Alloc[float32](w, mine.Len)
	s, err2 := w.NewStream("samplesort")
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	err = errors.Join(random.Normal(s, x, 1, mine.Off), vector.Sort(s, x, x))
	sample, samples := make([]float32, size), make([]float32, size*size)
	for r := range sample {
		sample[r] = x.At(r * mine.Len / size)
	}
	err = errors.Join(err, hostdata.AllGatherSlice(c, samples, sample))
	slices.Sort(samples)
	send, below, all := make([]int, size), 0, make([]int, size*size)
	for r := range size - 1 { // rank r gets the numbers below the first sample of the next
		end := sort.Search(mine.Len, func(i int) bool { return x.At(i) >= samples[(r+1)*size] })
		send[r], below = end-below, end
	}
	send[size-1] = mine.Len - below
	err = errors.Join(err, hostdata.AllGatherSlice(c, all, send))
	receive, total := make([]int, size), 0
	for r := range receive {
		receive[r] = all[r*size+w.Rank()]
		total += receive[r]
	}
	y, err2 := spmd.Alloc[float32](w, total)
	err = errors.Join(err, err2, spmd.AllToAllV(c.On(s), y, x, receive, send), vector.Sort(s, y, y))
	ends, totals, sum := make([]float32, 2*size), make([]int, size), 0
	err = errors.Join(err, hostdata.AllGatherSlice(c, ends, []float32{y.At(0), y.At(total - 1)}),
		hostdata.AllGatherSlice(c, totals, []int{total}))
	for r, elements := range totals {
		sum += elements
		err = errors.Join(err, w.Emit(map[string]any{"rank": r, "elements": elements}))
	}
	if err == nil && w.Rank() == 0 {
		fmt.Printf("%d numbers from %.4f to %.4f, in order over the ranks: %v\n",
			sum, ends[0], ends[2*size-1], slices.IsSorted(ends))
	}
	return err
}
