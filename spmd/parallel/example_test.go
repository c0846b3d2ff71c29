package parallel_test

import (
	"context"
	"errors"
	"fmt"

	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// The gradients of two layers are added over the ranks while the backward pass goes on: the last
// layer's first.
func ExampleReducer() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("backward")
		last, err2 := spmd.Alloc[float32](w, 100)
		first, err3 := spmd.Alloc[float32](w, 100)
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		r, err := parallel.NewReducer(w.Comm(), []spmd.Buffer[float32]{last, first}, parallel.ReducerConfig{})
		if err != nil {
			return err
		}
		err = errors.Join(
			spmd.Fill(s, last, float32(1+w.Rank())), // stands for a layer's backward pass
			r.Ready(0, s),
			spmd.Fill(s, first, 10),
			r.Ready(1, s),
			r.Wait(s), // what comes now on s has the sums
			s.Synchronize())
		if w.Rank() == 0 {
			fmt.Println(last.At(0), first.At(99))
		}
		return errors.Join(err, r.Close())
	})
	fmt.Println(err)
	// Output:
	// 3 20
	// <nil>
}

// Two ranks share the weights of two layers, of 3 and of 4 numbers. Each layer's are whole while it
// computes.
func ExampleGatherer() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		part := parallel.NewPartition(w.Rank(), w.Size(), 1, 3, 4)
		shard, err := spmd.Alloc[float32](w, part.ShardLen()) // what this rank keeps, and updates
		arena, err2 := spmd.Alloc[float32](w, part.Len())     // both layers; of many only some have memory at a time
		s, err3 := w.NewStream("forward")
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		err = shard.CopyFrom([][]float32{{1, 2, 5, 6}, {3, 0, 7, 8}}[w.Rank()]) // the first layer is padded
		if err != nil {
			return err
		}
		layers := []spmd.Buffer[float32]{arena.Slice(part.Bucket(0)), arena.Slice(part.Bucket(1))}
		g, err := parallel.NewGatherer(w.Comm(), layers,
			parallel.GathererConfig[float32]{Before: func(i int, own spmd.Buffer[float32], s *spmd.Stream) error {
				return spmd.Copy(s, own, shard.Slice(part.Shard(i)))
			}})
		if err != nil {
			return err
		}
		pass, err := g.Pass(0, 1)
		if err == nil {
			err = g.Begin(pass, s)
		}
		for i := range layers {
			err = errors.Join(err, g.Need(i, s)) // commands from here on s have layer i, until its use is done
			err = errors.Join(err, g.Done(i, s))
		}
		whole := make([]float32, arena.Len())
		err = errors.Join(err, g.End(s), s.Synchronize(), arena.CopyTo(whole))
		if w.Rank() == 0 {
			fmt.Println(whole)
		}
		return errors.Join(err, g.Close())
	})
	fmt.Println(err)
	// Output:
	// [1 2 3 0 5 6 7 8]
	// <nil>
}

// The gradients of a layer with 4 weights are added over two ranks, which get half of the sum each.
func ExampleScatterer() {
	sums := [2][2]float32{}
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		grad, err := spmd.Alloc[float32](w, 4)
		shard, err2 := spmd.Alloc[float32](w, 2)
		s, err3 := w.NewStream("backward")
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		r, err := parallel.NewScatterer(w.Comm(), []spmd.Buffer[float32]{grad}, []spmd.Buffer[float32]{shard}, spmd.Sum)
		if err != nil {
			return err
		}
		ready := r.Ready
		for range 2 {
			err = errors.Join(err, r.Use(0, s),
				spmd.Fill(s, grad, float32(1+w.Rank())), // stands for the layer's backward pass
				ready(0, s),
				r.Wait(s))
			ready = r.Add // the second micro-batch is added to the first
		}
		return errors.Join(err, s.Synchronize(), shard.CopyTo(sums[w.Rank()][:]), r.Close())
	})
	fmt.Println(sums, err)
	// Output:
	// [[6 6] [6 6]] <nil>
}

// Micro-batches go through two stages and back. The second finds the numbers that the first has
// read, the first the gradient that the second sends.
func ExamplePipeline() {
	const micro = 3
	all := [2][micro]float32{}
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		p, err := parallel.NewPipeline[float32](w.Comm(), 1, micro)
		data, err2 := spmd.Alloc[float32](w, micro)
		found, err3 := spmd.Alloc[float32](w, micro)
		s, err4 := w.NewStream("step")
		if err := errors.Join(err, err2, err3, err4, data.CopyFrom([]float32{1, 2, 3})); err != nil {
			return err
		}
		at := func(b spmd.Buffer[float32], m int) spmd.Buffer[float32] { return b.Slice(m, m+1) }
		err = p.Run(s, parallel.Stage[float32]{
			Forward: func(m, slot int, in, out spmd.Buffer[float32]) error {
				if w.Rank() == 0 {
					return spmd.Copy(s, out, at(data, m))
				}
				return spmd.Copy(s, at(found, m), in) // the loss
			},
			Backward: func(m, slot int, in, dout, din spmd.Buffer[float32]) error {
				if w.Rank() == 1 {
					return spmd.Fill(s, din, float32(10*m))
				}
				return spmd.Copy(s, at(found, m), dout)
			},
		})
		return errors.Join(err, s.Synchronize(), found.CopyTo(all[w.Rank()][:]), p.Close())
	})
	fmt.Println(all, err)
	// Output:
	// [[0 10 20] [1 2 3]] <nil>
}
