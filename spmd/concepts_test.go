package spmd_test

import (
	"context"
	"errors"
	"fmt"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/parallel"
)

// Four ranks in this process. Under mpirun each is a process, and they do the same. Without a
// Device it is found.
func ExampleLocal() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 4, func(_ context.Context, w *spmd.World) error {
		sum, err := hostdata.AllReduce(w.Comm(), w.Rank(), spmd.Sum)
		if w.Rank() == 0 {
			fmt.Println("sum of the ranks:", sum)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// sum of the ranks: 6
	// <nil>
}

// Memory of a device is written and read by copies, since a GPU has it. The host reads pinned
// memory in place.
func ExampleAlloc() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 1, func(_ context.Context, w *spmd.World) error {
		x, err := spmd.Alloc[float32](w, 4)
		if err != nil {
			return err
		}
		defer x.Free()
		got := make([]float32, 2)
		err = errors.Join(x.CopyFrom([]float32{1, 2, 3, 4}), x.Slice(2, 4).CopyTo(got))
		fmt.Println(got, x.At(0))
		return err
	})
	fmt.Println(err)
	// Output:
	// [3 4] 1
	// <nil>
}

// Each rank brings one element, and each gets those of all.
func ExampleAllGather() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 3, func(_ context.Context, w *spmd.World) error {
		mine, err := spmd.Alloc[int32](w, 1)
		all, err2 := spmd.Alloc[int32](w, w.Size())
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		got := make([]int32, w.Size())
		err = errors.Join(mine.SetAll(int32(10*w.Rank())), spmd.AllGather(w.Comm(), all, mine), all.CopyTo(got))
		if w.Rank() == 2 {
			fmt.Println(got)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [0 10 20]
	// <nil>
}

// Each rank tells its right neighbour a number. None is a neighbour that is not there: the ends of
// the line leave a half out.
func ExampleSendRecv() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 3, func(_ context.Context, w *spmd.World) error {
		line, err := parallel.NewLayout(w, parallel.Axis{Name: "x", Size: parallel.Fit})
		mine, err2 := spmd.Alloc[int32](w, 1)
		got, err3 := spmd.Alloc[int32](w, 1)
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		left, right := line.Shift("x", 1)
		err = errors.Join(mine.SetAll(int32(w.Rank()+1)), got.SetAll(-1),
			spmd.SendRecv(w.Comm(), got, left, mine, right))
		all, err2 := hostdata.AllGather(w.Comm(), got.At(0))
		if w.Rank() == 0 {
			fmt.Println(all)
		}
		return errors.Join(err, err2)
	})
	fmt.Println(err)
	// Output:
	// [-1 1 2]
	// <nil>
}

// Messages of a group do not wait for each other: every rank sends first.
func ExampleComm_Group() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		mine, err := spmd.Alloc[int32](w, 1)
		got, err2 := spmd.Alloc[int32](w, 1)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		c, other := w.Comm(), 1-w.Rank()
		err = errors.Join(mine.SetAll(int32(w.Rank())), c.Group(func() error {
			return errors.Join(spmd.Send(c, mine, other), spmd.Recv(c, got, other))
		}))
		if w.Rank() == 0 {
			fmt.Println("rank 0 has got", got.At(0))
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// rank 0 has got 1
	// <nil>
}

// Even ranks and odd ones have a communicator each.
func ExampleComm_Split() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 4, func(_ context.Context, w *spmd.World) error {
		half, err := w.Comm().Split(w.Rank()%2, w.Rank())
		if err != nil {
			return err
		}
		sum, err := hostdata.AllReduce(half, w.Rank(), spmd.Sum)
		if w.Rank() == 1 {
			fmt.Println("rank", half.Rank(), "of", half.Size(), "with a sum of", sum)
		}
		return errors.Join(err, half.Close())
	})
	fmt.Println(err)
	// Output:
	// rank 0 of 2 with a sum of 4
	// <nil>
}

// Two replicas of a model that two ranks share: sums of a layer go along one axis, those of
// gradients along the other.
func Example_mesh() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 4, func(_ context.Context, w *spmd.World) error {
		m, err := parallel.NewMesh(w, parallel.Axis{Name: "data", Size: parallel.Fit},
			parallel.Axis{Name: "tensor", Size: 2})
		if err != nil {
			return err
		}
		layer, err := hostdata.AllGather(m.Comm("tensor"), w.Rank())
		grads, err2 := hostdata.AllGather(m.Comm("data"), w.Rank())
		if w.Rank() == 3 {
			fmt.Println("rank 3 shares layers with", layer, "and adds gradients with", grads)
		}
		return errors.Join(err, err2)
	})
	fmt.Println(err)
	// Output:
	// rank 3 shares layers with [2 3] and adds gradients with [1 3]
	// <nil>
}

// A stream does its work in order, beside the program. Another one waits for it by After.
func ExampleStream_After() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 1, func(_ context.Context, w *spmd.World) error {
		first, err := w.NewStream("first")
		second, err2 := w.NewStream("second")
		x, err3 := spmd.Alloc[int32](w, 5)
		y, err4 := spmd.Alloc[int32](w, 5)
		if err := errors.Join(err, err2, err3, err4); err != nil {
			return err
		}
		err = errors.Join(spmd.Fill(first, x, 7), second.After(first), spmd.Copy(second, y, x), second.Synchronize())
		fmt.Println(y.At(4))
		return err
	})
	fmt.Println(err)
	// Output:
	// 7
	// <nil>
}

// A launch repeats the commands of a capture, collectives included: on a GPU by one call of the
// driver.
func ExampleStream_Capture() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("steps")
		x, err2 := spmd.Alloc[float64](w, 1)
		if err := errors.Join(err, err2, x.SetAll(1)); err != nil {
			return err
		}
		step, err := s.Capture(func() error { return spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum) })
		if err != nil {
			return err
		}
		defer step.Close()
		for range 10 {
			err = errors.Join(err, step.Launch(s))
		}
		err = errors.Join(err, s.Synchronize())
		if w.Rank() == 0 {
			fmt.Println(x.At(0))
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// 1024
	// <nil>
}

// A kernel has its source for GPUs, which is compiled when a GPU first needs it, and a function for
// the host.
func ExampleNewKernel() {
	square := spmd.NewKernel("square", `
extern "C" __global__ void square(double *x, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) x[i] *= x[i];
}`, func(a spmd.Args) error {
		x := spmd.ArgSlice[float64](a, 0)
		host.Parallel(len(x), 1<<12, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				x[i] *= x[i]
			}
		})
		return nil
	})
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 1, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("main")
		x, err2 := spmd.Alloc[float64](w, 1000)
		if err := errors.Join(err, err2, x.SetAll(3)); err != nil {
			return err
		}
		err = errors.Join(square.Launch(s, spmd.Cover1D(x.Len(), 256), x.Arg(), spmd.I32(x.Len())), s.Synchronize())
		fmt.Println(x.At(999))
		return err
	})
	fmt.Println(err)
	// Output:
	// 9
	// <nil>
}

// A value of any type goes from one rank to all: here what rank 0 has read, say, from a file.
func Example_settings() {
	cfg := spmd.Config{Device: "host", LogLevel: "error"}
	err := spmd.Local(context.Background(), cfg, 3, func(_ context.Context, w *spmd.World) error {
		var settings map[string]int
		if w.Rank() == 0 {
			settings = map[string]int{"rows": 100}
		}
		settings, err := hostdata.Broadcast(w.Comm(), settings, 0)
		if w.Rank() == 2 {
			fmt.Println(settings["rows"])
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// 100
	// <nil>
}

// Ten rows over three ranks: parts differ by one row at most, and no rank is left out.
func ExampleShardOf() {
	for rank := range 3 {
		fmt.Println(spmd.ShardOf(10, rank, 3))
	}
	// Output:
	// {0 4}
	// {4 3}
	// {7 3}
}
