package spmd_test

import (
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// One array is all ranks', whichever device they have.
func TestManagedShared(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1, 2, 3}, managedShared)
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) { // processes have one each
		x, err := spmd.AllocManagedShared[int32](w, 10)
		spmdtest.Must(t, err)
		x.Host()[3] = int32(w.Rank())
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if x.Host()[3] != int32(w.Rank()) {
			t.Errorf("rank %d has the memory of another", w.Rank())
		}
		spmdtest.Must(t, x.Free())
	})
}

func managedShared(t *testing.T, w *spmd.World) {
	const n = 100_003
	x, err := spmd.AllocManagedShared[int32](w, n)
	spmdtest.Must(t, err)
	s := spmdtest.Stream(t, w, "s")
	part := spmd.ShardOf(n, w.Rank(), w.Size())
	mine := x.Slice(part.Off, part.Off+part.Len)
	spmdtest.Must(t, mine.Advise(spmd.PreferDevice))
	spmdtest.Must(t, mine.Prefetch(s, spmd.ToDevice))
	spmdtest.Must(t, spmd.Fill(s, mine, int32(w.Rank()+1)))
	spmdtest.Must(t, mine.Prefetch(s, spmd.ToHost))
	spmdtest.Must(t, s.Synchronize())
	spmdtest.Must(t, spmd.Barrier(w.Comm()))
	for r := range w.Size() {
		part := spmd.ShardOf(n, r, w.Size())
		theirs := x.Host()[part.Off : part.Off+part.Len]
		if i := slices.IndexFunc(theirs, func(v int32) bool { return v != int32(r+1) }); i >= 0 {
			t.Errorf("rank %d sees %d at [%d], which is rank %d's", w.Rank(), theirs[i], part.Off+i, r)
		}
	}
	spmdtest.Must(t, spmd.Barrier(w.Comm()))

	// A rank that has freed it cannot use it, and the others can, also when there is new memory.
	last := w.Size() - 1
	if w.Rank() != last {
		spmdtest.Must(t, x.Free())
		spmdtest.Must(t, x.Free())
		if err := spmd.Fill(s, x, 0); err == nil || !strings.Contains(err.Error(), "was freed at") {
			t.Errorf("after Free: %v", err)
		}
		y, err := spmd.AllocManaged[int32](w, n)
		spmdtest.Must(t, err)
		spmdtest.Must(t, spmd.Fill(s, y, -1))
		spmdtest.Must(t, s.Synchronize())
		spmdtest.Must(t, y.Free())
	}
	spmdtest.Must(t, spmd.Barrier(w.Comm()))
	if w.Rank() == last {
		if v := x.Host()[n-1]; v != int32(w.Size()) {
			t.Errorf("the last user sees %d", v)
		}
		spmdtest.Must(t, x.Free())
	}
	spmdtest.Must(t, spmd.Barrier(w.Comm()))

	z, err := spmd.AllocManagedShared[int32](w, 0)
	spmdtest.Must(t, err)
	spmdtest.Must(t, z.Free())
	if w.Size() == 1 {
		return
	}
	_, err = spmd.AllocManagedShared[int32](w, n+w.Rank())
	if err == nil || !strings.Contains(err.Error(), "over the ranks") ||
		!strings.Contains(err.Error(), "managedshared_test.go:") {
		t.Errorf("different lengths: %v", err)
	}
	_, err = spmd.AllocManagedShared[int32](w, -1)
	if err == nil || !strings.Contains(err.Error(), "rank 0: ") {
		t.Errorf("no length: %v", err)
	}
}
