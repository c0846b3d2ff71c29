package parallel

import (
	"context"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// A hash depends on the bytes alone, wherever they begin, and on each of them.
func TestHash(t *testing.T) {
	spmdtest.CompareKernels(t)
	c := spmdtest.Config()
	spmdtest.Must(t, spmd.Local(t.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("hash")
		spmdtest.Must(t, err)
		sum, err := spmd.Alloc[uint64](w, 1)
		spmdtest.Must(t, err)
		of := func(v []byte, from int) uint64 {
			b, err := spmd.Alloc[uint8](w, from+len(v))
			spmdtest.Must(t, err)
			spmdtest.Must(t, b.Slice(from, from+len(v)).CopyFrom(v))
			spmdtest.Must(t, hash(s, sum, b.Slice(from, from+len(v))))
			spmdtest.Must(t, s.Synchronize())
			return sum.At(0)
		}
		for _, n := range []int{0, 1, 7, 8, 16, 4096, 40_009, 70_000} {
			v := make([]byte, n)
			for i := range v {
				v[i] = byte(i * i / 3)
			}
			want := of(v, 0)
			if got := of(v, 3); got != want {
				t.Errorf("%d bytes from 3 on have hash %x, from 0 on %x", n, got, want)
			}
			for _, at := range []int{0, n / 2, n - 1} {
				if n > 0 {
					v[at] ^= 1
					if of(v, 0) == want {
						t.Errorf("byte %d of %d does not count", at, n)
					}
					v[at] ^= 1
				}
			}
		}
		return nil
	}))
}
