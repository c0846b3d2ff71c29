package blas_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/vector"
)

// appEnv says what the program "app" does.
const appEnv = "BLAS_TEST_APP"

func TestMain(m *testing.M) { spmdtest.Main(m, app) }

// app makes one product, of 8-bit floats or not.
func app() {
	spmd.Main(pflag.NewFlagSet("app", pflag.ExitOnError), func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("work")
		if err != nil {
			return err
		}
		if os.Getenv(appEnv) == "named work" {
			return namedWork(w, s)
		}
		x, err := spmd.Alloc[spmd.F8E4M3](w, 256)
		if err != nil {
			return err
		}
		y, err := spmd.Alloc[spmd.BF16](w, 256)
		if err != nil {
			return err
		}
		c := blas.MatrixOf(y, 16, 16)
		if os.Getenv(appEnv) == "8 bits" {
			m := blas.MatrixOf(x, 16, 16)
			err = blas.Gemm(s, c, m, m, blas.Options{TransB: true})
		} else {
			err = blas.Gemm(s, blas.MatrixOf(y.Slice(0, 64), 8, 8), blas.MatrixOf(y.Slice(64, 128), 8, 8),
				blas.MatrixOf(y.Slice(64, 128), 8, 8), blas.Options{})
		}
		if err != nil {
			return err
		}
		return s.Synchronize()
	})
}

// namedReplays is how often namedWork replays its graph.
const namedReplays = 40

// namedWork makes products of several shapes, and replays a graph of one, of a kernel in Go and of
// a copy.
func namedWork(w *spmd.World, s *spmd.Stream) error {
	const n = 16
	x, err := spmd.Alloc[spmd.BF16](w, n*n)
	y, err2 := spmd.Alloc[spmd.BF16](w, 3*n*n)
	z, err3 := spmd.Alloc[float32](w, 1000)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	a, c := blas.MatrixOf(x, n, n), blas.MatrixOf(y.Slice(0, n*n), n, n)
	product := func() error { return blas.Gemm(s, c, a, a, blas.Options{TransB: true}) }
	axpy := func() error { return vector.Axpy(s, z.Slice(0, 500), 2, z.Slice(500, 1000)) }
	err = errors.Join(product(), product(), axpy(),
		blas.Gemm(s, blas.MatrixOf(y.Slice(0, 64), 8, 8), blas.MatrixOf(x.Slice(0, 64), 8, 8),
			blas.MatrixOf(x.Slice(64, 128), 8, 8), blas.Options{Batch: 1, Accumulate: true}))
	if err != nil {
		return err
	}
	g, err := s.Capture(func() error { return errors.Join(product(), axpy(), spmd.Copy(s, x, y.Slice(n*n, 2*n*n))) })
	if err != nil {
		return err
	}
	for range namedReplays {
		if err := errors.Join(g.Launch(s), s.Synchronize()); err != nil {
			return err
		}
	}
	return g.Close()
}

// TestNamedWork: the summary has a row for each kernel and each shape of a product, with what they
// were called for.
func TestNamedWork(t *testing.T) {
	namedRows(t)
}

// namedRows compares the rows of namedWork with what it does. It returns them by their names.
func namedRows(t *testing.T, env ...string) map[string]row {
	t.Helper()
	ranks := 2
	if spmdtest.Device() != "host" { // a machine may have one GPU
		ranks = 1
	}
	got := spmdtest.Program(t, ranks, append([]string{appEnv + "=named work"}, env...), "--summary", "on",
		"--log-format", "json")
	var line struct{ Summary struct{ Works []row } }
	for text := range strings.Lines(got.Stderr) {
		if strings.Contains(text, `"summary":{`) {
			spmdtest.Must(t, json.Unmarshal([]byte(text), &line))
		}
	}
	rows := map[string]row{}
	for _, r := range line.Summary.Works {
		rows[r.What] = r
	}
	for what, want := range map[string]row{
		"Gemm 16x16x16 bfloat16 B^T": {Count: 2 + namedReplays, Bytes: (2 + namedReplays) * 3 * 512},
		"Gemm 8x8x8 bfloat16":        {Count: 1, Bytes: 4 * 128}, // C is read, too
		"axpy<float>":                {Count: 1 + namedReplays, Bytes: (1 + namedReplays) * 2 * 2000},
		"Copy":                       {Count: namedReplays, Bytes: namedReplays * 512},
	} {
		if r := rows[what]; r.Count != want.Count || r.Bytes != want.Bytes || r.Seconds <= 0 || r.Share <= 0 {
			t.Errorf("%s: %+v, want %+v and its time", what, r, want)
		}
	}
	if got.Status != 0 || t.Failed() {
		t.Fatalf("status %d\n%s", got.Status, got.Stderr)
	}
	return rows
}

// row is what a test reads of a row of the summary.
type row struct {
	What           string
	Count, Bytes   uint64
	Seconds, Share float64
	InGraph        uint64 `json:"in_graph"`
}

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
