package nccl

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
)

func fill(b []byte) {
	for i := range b {
		b[i] = unset
	}
}

// sumOfRanks reduces this rank's number from 1 on over c.
func (r *rig) sumOfRanks(c *Comm, rank, want int) error {
	const size = 1023
	out := make([]byte, size*4)
	series(elem.Int32, out, 0, size, func(int) float64 { return float64(want) })
	if err := r.load(elem.Int32, size, func(int) float64 { return float64(rank + 1) }); err != nil {
		return err
	}
	return r.result(elem.Int32, size, 0, out, func(dst unsafe.Pointer) error {
		return c.AllReduce(r.s, dst, r.src, size, elem.Int32, elem.Sum)
	})
}

// testRegistered reduces in memory that is registered, as a window if this NCCL has them.
func testRegistered(t *testing.T, rigs []*rig) {
	if Version() < 21900 {
		t.Skipf("NCCL %s has no registration", VersionString())
	}
	const size = 4096
	n := len(rigs)
	each(t, rigs, func(rank int, r *rig) error {
		p, err := MemAlloc(r.d, 2*size*4)
		if err != nil {
			return err
		}
		ends := []func() error{}
		reg, err := r.Register(p, 2*size*4)
		if err != nil {
			return err
		}
		ends = append(ends, reg.Close)
		if Version() >= 22700 {
			w, err := r.RegisterWindow(p, 2*size*4)
			if err != nil {
				return err
			}
			if rank == 0 {
				t.Logf("window registered: %v", w.Registered())
			}
			ends = append([]func() error{w.Close}, ends...)
		}
		for _, op := range []elem.Op{elem.Sum, elem.Max} {
			want := make([]byte, size*4)
			series(elem.Float32, want, 0, size, func(i int) float64 { return reduced(elem.Float32, op, n, i) })
			series(elem.Float32, r.host, 0, size, func(i int) float64 { return value(elem.Float32, op, rank, i) })
			if err := r.s.Copy(p, r.pinned, size*4); err != nil {
				return err
			}
			if err := r.AllReduce(r.s, unsafe.Add(p, size*4), p, size, elem.Float32, op); err != nil {
				return err
			}
			if err := r.s.Copy(r.pinned, unsafe.Add(p, size*4), size*4); err != nil {
				return err
			}
			if err := r.s.Synchronize(); err != nil {
				return err
			}
			if !bytes.Equal(r.host[:size*4], want) {
				return fmt.Errorf("%v in registered memory is wrong", op)
			}
		}
		for _, end := range ends {
			if err := end(); err != nil {
				return err
			}
		}
		return MemFree(r.d, p)
	})
}

// testSplit makes communicators of the even and the odd ranks in reverse order, with and without
// shared resources, and one of all but the first.
func testSplit(t *testing.T, rigs []*rig) {
	n := len(rigs)
	ctx := context.Background()
	for _, share := range []bool{false, true} {
		leave := join(t, rigs, Config{SplitShare: share, CommName: "world"})
		each(t, rigs, func(rank int, r *rig) error {
			c, err := r.Split(ctx, rank%2, -rank, Config{CommName: "half"})
			if err != nil {
				return err
			}
			var size, after, sum int
			for q := rank % 2; q < n; q += 2 {
				size++
				sum += q + 1
				if q > rank {
					after++
				}
			}
			if c.Size() != size || c.Rank() != after || c.Device() != r.d {
				return fmt.Errorf("rank %d of %d in its half, want %d of %d", c.Rank(), c.Size(), after, size)
			}
			if err := r.sumOfRanks(c, rank, sum); err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
			color := 0
			if rank == 0 {
				color = -1
			}
			c, err = r.Split(ctx, color, 0, Config{})
			if err != nil || (c == nil) != (rank == 0) {
				return fmt.Errorf("split of all but the first: %v, %w", c, err)
			}
			if c != nil {
				if err := r.sumOfRanks(c, rank, n*(n+1)/2-1); err != nil {
					return err
				}
				if err := c.Close(); err != nil {
					return err
				}
			}
			return r.sumOfRanks(r.Comm, rank, n*(n+1)/2)
		})
		leave()
	}
}

// testAbort ends a reduction that the last rank never joins.
func testAbort(t *testing.T, rigs []*rig) {
	n := len(rigs)
	leave := join(t, rigs, Config{})
	each(t, rigs, func(rank int, r *rig) error { return r.sumOfRanks(r.Comm, rank, n*(n+1)/2) }) // connects
	var waiting sync.WaitGroup
	waiting.Add(n - 1)
	each(t, rigs, func(rank int, r *rig) error {
		if rank == n-1 {
			waiting.Wait()
			return r.Abort()
		}
		err := r.AllReduce(r.s, r.dst, r.src, 1023, elem.Int32, elem.Sum)
		waiting.Done()
		if err != nil {
			return err
		}
		if done, err := r.s.Query(); done || err != nil {
			return fmt.Errorf("a reduction without the last rank: done %v, %w", done, err)
		}
		if err := r.Abort(); err != nil {
			return err
		}
		return r.s.Synchronize() // the stream is free again
	})
	leave()
	leave = join(t, rigs, Config{}) // and the GPUs serve another communicator
	each(t, rigs, func(rank int, r *rig) error { return r.sumOfRanks(r.Comm, rank, n*(n+1)/2) })
	leave()
}
