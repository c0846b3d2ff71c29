package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/campaign"
	"lockstep/internal/fakelib"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// TestBoxLayout: the box of Go is that of C, which holds nothing but long long.
func TestBoxLayout(t *testing.T) {
	if got, want := unsafe.Sizeof(box{}), uintptr(8*(1+3+3+3+3+6+7)); got != want {
		t.Errorf("the box has %d bytes, want %d", got, want)
	}
}

// TestEmulated runs the kernels in a test double of the device, and compares all that they write, and all that they leave
// alone, with the host's.
func TestEmulated(t *testing.T) {
	spmdtest.HostOnly(t, "it needs a compiler")
	program := filepath.Join(t.TempDir(), "emulate")
	build := exec.Command("c++", "-std=c++14", "-O1", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I../../spmd", "-o", program, "testdata/emulate.cc")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	few := 1
	if campaign.All() {
		few = 0
	}
	campaign.More(t, 180, "boxes and neighbours whose kernels are emulated")
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for i, n := range [][3]int{{1, 1, 1}, {1, 1, 9}, {9, 1, 1}, {2, 1, 2}, {70, 1, 130}, {5, 1, 1030}, {131, 1, 17}} {
			for behind := i % 5 * few; behind < 16; behind += 1 + 4*few {
				sides := [6]bool{behind&1 != 0, behind&2 != 0, false, false, behind&4 != 0, behind&8 != 0}
				if (i+behind)%2 == 0 {
					emulate[float32](t, program, w, 2, n, sides)
				} else {
					emulate[float64](t, program, w, 2, n, sides)
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
					emulate[float32](t, program, w, 3, n, sides)
				} else {
					emulate[float64](t, program, w, 3, n, sides)
				}
			}
		}
	})
}

// TestOnDoubles runs the program on test doubles of GPUs, whose streams are threads of their own, and whose kernels are the
// program's: messages go through host memory and, in a graph, between devices.
func TestOnDoubles(t *testing.T) {
	spmdtest.HostOnly(t, "test doubles are for machines without a GPU")
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	fakelib.CUDA(t, dir)
	kernels := fakelib.Build(t, dir, "libemulate.so", "-std=c++14", "-w", "-I../../spmd", "testdata/double.cc",
		"../../internal/peer/testdata/emulate.cc", "../../spmd/testdata/fill.cc")
	env := []string{"LD_LIBRARY_PATH=" + dir, "FAKECUDA_KERNELS=" + kernels, "FAKECUDA_DEVICES=3", "FAKECUDA_DELAY=20", "FAKECUDA_SHARED=1"}
	for _, tc := range []struct{ peers, args string }{
		{"0", "--collectives=mpi-staged --size=40x150 --edges=periodic"},
		{"0", "--collectives=mpi-staged --size=11x12x70 --dtype=float64"},
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

// emulate runs the kernels for a box of n cells on random memory.
func emulate[T number](t *testing.T, program string, w *spmd.World, dims int, n [3]int, behind [6]bool) {
	t.Helper()
	l := newLauncher[T](w, newBox(dims, n, sizeOf[T](), behind))
	s := spmdtest.Stream(t, w, "test")
	seed := uint64(0)
	random := func(n int) spmd.Buffer[T] {
		b, err := spmd.Alloc[T](w, n)
		spmdtest.Must(t, err)
		values := make([]T, n)
		for i := range values {
			values[i] = T(spmd.UniformBits(seed, uint64(i))) / (1 << 24)
		}
		seed++
		spmdtest.Must(t, b.CopyFrom(values))
		return b
	}
	fields := [2]spmd.Buffer[T]{random(l.box.elements()), random(l.box.elements())}
	faces := [2]spmd.Buffer[T]{random(l.box.packed(sizeOf[T]())), random(l.box.packed(sizeOf[T]()))}
	var in, want bytes.Buffer
	write := func(b spmd.Buffer[T], to *bytes.Buffer) {
		values := make([]T, b.Len())
		spmdtest.Must(t, b.CopyTo(values))
		spmdtest.Must(t, binary.Write(to, binary.NativeEndian, values))
	}
	launch := func(kernel, run, pack int, g spmd.Grid, onHost func() error) {
		head := []int64{int64(kernel), int64(sizeOf[T]()), int64(fields[0].Len()), int64(faces[0].Len()), int64(run), int64(pack), int64(-math.Log2(beside)), 0}
		for _, d := range [][3]int{g.Blocks, g.Threads} {
			head = append(head, int64(d[0]), int64(d[1]), int64(d[2]))
		}
		spmdtest.Must(t, binary.Write(&in, binary.NativeEndian, head))
		spmdtest.Must(t, binary.Write(&in, binary.NativeEndian, l.box))
		for _, b := range [][2]spmd.Buffer[T]{fields, faces} {
			write(b[0], &in)
			write(b[1], &in)
		}
		spmdtest.Must(t, onHost())
		spmdtest.Must(t, s.Synchronize())
		write(fields[0], &want)
		write(faces[0], &want)
	}
	if l.box.inside() > 0 {
		for _, run := range []int{l.run, 1, 7} {
			g := l.inside
			g.Blocks[2] = (int(l.box.Hi[0]-l.box.Lo[0]) + run - 1) / run
			launch(dims, run, 0, g, func() error { return l.step(s, fields[0], fields[1]) })
		}
	}
	if cells := int(l.box.First[6]); cells > 0 {
		for pack := range 2 {
			launch(1, 0, pack, spmd.Cover1D(cells, 256), func() error {
				return l.frame(s, fields[0], fields[1], faces[0], faces[1], pack == 1)
			})
		}
	}
	var errors bytes.Buffer
	cmd := exec.Command(program)
	cmd.Stdin, cmd.Stderr = &in, &errors
	got, err := cmd.Output()
	if what := fmt.Sprintf("%T, %v cells, neighbours %v", *new(T), n, behind); err != nil {
		t.Fatalf("%s: %v\n%s", what, err, &errors)
	} else if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s: the device and the host differ", what)
	}
	spmdtest.Must(t, s.Close())
	for _, b := range []spmd.Buffer[T]{fields[0], fields[1], faces[0], faces[1]} {
		spmdtest.Must(t, b.Free())
	}
}
