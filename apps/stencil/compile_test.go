package main

import (
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// The box of Go has the layout of that of C, which holds only long long.
func TestBoxLayout(t *testing.T) {
	if got, want := unsafe.Sizeof(box{}), uintptr(8*(1+3+3+3+3+6+7)); got != want {
		t.Errorf("the box has %d bytes, want %d", got, want)
	}
}

// Each launch is compared with the host, for boxes of many shapes: everything that kernels write,
// and everything that they must leave alone.
func TestCompareKernels(t *testing.T) {
	spmdtest.CompareKernels(t)
	few := 1
	if testkit.AllCases() {
		few = 0
	}
	testkit.More(t, 180, "boxes and neighbours whose kernels run both ways")
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for i, n := range [][3]int{
			{1, 1, 1}, {1, 1, 9}, {9, 1, 1}, {2, 1, 2}, {70, 1, 130}, {5, 1, 1030}, {131, 1, 17},
		} {
			for behind := i % 5 * few; behind < 16; behind += 1 + 4*few {
				sides := [6]bool{behind&1 != 0, behind&2 != 0, false, false, behind&4 != 0, behind&8 != 0}
				if (i+behind)%2 == 0 {
					compare[float32](t, w, 2, n, sides)
				} else {
					compare[float64](t, w, 2, n, sides)
				}
			}
		}
		for i, n := range [][3]int{{1, 1, 1}, {2, 3, 4}, {3, 2, 1}, {7, 9, 33}, {5, 17, 131}} {
			for behind := i * 3 * few; behind < 64; behind += 3 + 12*few {
				var sides [6]bool
				for i := range sides {
					sides[i] = behind>>i&1 != 0
				}
				if (i+behind)%2 == 0 {
					compare[float32](t, w, 3, n, sides)
				} else {
					compare[float64](t, w, 3, n, sides)
				}
			}
		}
	})
}

// The program runs on test doubles of GPUs. Their streams are threads of their own, and their
// kernels are the program's. Messages go through host memory and, in a graph, between devices.
func TestOnDoubles(t *testing.T) {
	spmdtest.HostOnly(t, "test doubles are for machines without a GPU")
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	testkit.BuildCUDA(t, dir)
	kernels := testkit.BuildLibrary(t, dir, "libemulate.so", "-std=c++14", "-w", "-I../../spmd", "testdata/double.cc",
		"../../spmd/internal/peer/testdata/emulate.cc", "../../spmd/testdata/fill.cc")
	env := []string{"LD_LIBRARY_PATH=" + dir, "FAKECUDA_KERNELS=" + kernels, "FAKECUDA_DEVICES=3", "FAKECUDA_DELAY=20",
		"FAKECUDA_SHARED=1"}
	for _, tc := range []struct{ peers, args string }{
		{"0", "--collectives=host-staged --size=40x150 --edges=periodic"},
		{"0", "--collectives=host-staged --size=11x12x70 --dtype=float64"},
		{"1", "--collectives=mpi-peer --graph --size=40x150 --dtype=float64"},
		{"1", "--collectives=mpi-peer --graph --size=11x12x70 --edges=periodic --mesh=1x3x1"},
	} {
		args := append(strings.Fields(tc.args), "--device=cuda", "--steps=4", "--iters=3", "--warmup=1", "--json=-")
		p := spmdtest.Program(t, 3, append(env, "FAKECUDA_PEERS="+tc.peers), args...)
		if p.Status != 0 || !strings.Contains(p.Stdout, `"ok":true`) {
			t.Errorf("%s: status %d\n%s%s", tc.args, p.Status, p.Stdout, p.Stderr)
		}
	}
}

// compare runs the kernels for a box of n cells on random memory.
func compare[T number](t *testing.T, w *spmd.World, dims int, n [3]int, behind [6]bool) {
	t.Helper()
	l := newLauncher[T](w, newBox(dims, n, sizeOf[T](), behind))
	s := spmdtest.Stream(t, w, "test")
	seed := uint64(0)
	random := func(n int) spmd.Buffer[T] {
		values := make([]T, n)
		for i := range values {
			values[i] = T(spmd.UniformBits(seed, uint64(i))) / (1 << 24)
		}
		seed++
		b := spmdtest.Alloc[T](t, w, n)
		spmdtest.Must(t, b.CopyFrom(values))
		return b
	}
	fields := [2]spmd.Buffer[T]{random(l.box.elements()), random(l.box.elements())}
	faces := [2]spmd.Buffer[T]{random(l.box.packed(sizeOf[T]())), random(l.box.packed(sizeOf[T]()))}
	if l.box.inside() > 0 {
		for _, run := range []int{l.run, 1, 7} {
			l.run, l.inside.Blocks[2] = run, (int(l.box.Hi[0]-l.box.Lo[0])+run-1)/run
			spmdtest.Must(t, l.step(s, fields[0], fields[1]))
		}
	}
	spmdtest.Must(t, l.frame(s, fields[0], fields[1], faces[0], faces[1]))
	spmdtest.Must(t, l.pack(s, fields[1], faces[0], faces[1]))
	if err := s.Synchronize(); err != nil {
		t.Fatalf("%T, %v cells, neighbours %v: %v", *new(T), n, behind, err)
	}
	spmdtest.Must(t, s.Close())
	for _, b := range []spmd.Buffer[T]{fields[0], fields[1], faces[0], faces[1]} {
		spmdtest.Must(t, b.Free())
	}
}
