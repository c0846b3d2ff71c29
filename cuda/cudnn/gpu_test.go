package cudnn

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// onGPU skips the test without a GPU or the library.
func onGPU(t *testing.T) *machine {
	t.Helper()
	if err := cuda.Load(); err != nil {
		t.Skip(err)
	}
	if err := Load(); err != nil {
		t.Skip(err)
	}
	return newMachine(t)
}

func TestGPUAttention(t *testing.T) {
	m := onGPU(t)
	for _, s := range []Shape{
		{2, 256, 3, 64, elem.BFloat16}, {1, 128, 2, 128, elem.BFloat16}, {3, 384, 2, 64, elem.Float16},
		{1, 1024, 2, 64, elem.BFloat16}, {2, 128, 5, 32, elem.BFloat16},
	} {
		for _, deterministic := range []bool{true, false} {
			m.trial(s, deterministic).check(6)
		}
	}
}

// A graph that holds both passes gives its first results each time, and the deterministic form
// gives equal bits.
func TestGPUAttentionCapture(t *testing.T) {
	m := onGPU(t)
	r := m.trial(Shape{4, 512, 4, 64, elem.BFloat16}, true)
	r.check(2)
	n := 2 * 3 * r.Batch * r.Tokens * r.Heads * r.Size
	want := m.bits(r.pdqkv, n)
	runtime.LockOSThread() // a capture ends on the thread where it began
	defer runtime.UnlockOSThread()
	m.must(m.s.BeginCapture(cuda.ThreadLocal))
	m.try(r.forward())
	m.try(r.backward())
	graph, err := m.s.EndCapture()
	m.must(err)
	exec, err := graph.Instantiate()
	m.must(err)
	m.try(graph.Close())
	for i := range 100 {
		m.poison(r.pdqkv, n)
		m.poison(r.pout, n/3)
		m.poison(r.w, r.a.BackwardWorkspace())
		m.try(exec.Launch(m.s))
		if got := m.bits(r.pdqkv, n); got != want {
			t.Errorf("replay %d differs", i)
			break
		}
	}
	m.try(m.s.Synchronize())
	m.try(exec.Close())
}

// The largest shapes of the README's tables. -v shows the times of the passes, and whether equal
// operands gave equal bits.
func TestGPUAttentionSpeed(t *testing.T) {
	m := onGPU(t)
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, s := range []Shape{{64, 1024, 12, 64, elem.BFloat16}, {8, 1024, 12, 64, elem.BFloat16}} {
		for _, deterministic := range []bool{true, false} {
			began := time.Now()
			c, err := m.h.TuneAttention(s, deterministic)
			m.must(err)
			tuned := time.Since(began)
			began = time.Now()
			a, err := m.h.NewAttention(s, deterministic, c)
			m.must(err)
			made := time.Since(began)
			n := s.Batch * s.Tokens * s.Heads * s.Size
			r := &trial{machine: m, Shape: s, a: a}
			random := func(n int) ptr {
				p, g := m.alloc(2*n), rand.New(rand.NewPCG(1, uint64(n)))
				v := unsafe.Slice((*elem.BF16)(ptr(&m.stage(2 * n)[0])), n)
				few := normals(g, s.Type, 1<<16)
				for i := range v {
					v[i] = elem.ToBF16(float32(few[(i+i>>16)&(1<<16-1)]))
				}
				m.try(m.s.Copy(p, m.host, 2*n))
				m.try(m.s.Synchronize())
				return p
			}
			r.pqkv, r.pdout = random(3*n), random(n)
			r.pout, r.plse, r.pdqkv = m.alloc(2*n), m.alloc(4*s.Batch*s.Heads*s.Tokens), m.alloc(6*n)
			r.w = m.alloc(max(a.ForwardWorkspace(), a.BackwardWorkspace()))
			forward, backward := m.median(r.forward), m.median(r.backward)
			equal := true
			first := m.bits(r.pdqkv, 6*n)
			for range 5 {
				m.poison(r.w, a.BackwardWorkspace())
				m.try(r.backward())
				equal = equal && m.bits(r.pdqkv, 6*n) == first
			}
			f, b := a.Engines()
			t.Logf("cuDNN %s, B=%d, T=%d, NH=%d, HS=%d, deterministic %v (%v): forward %.4f ms, backward "+
				"%.4f ms, equal bits %v; engines %d, %d; workspace %d, %d bytes; %+v in %v, made in %v",
				Version(), s.Batch, s.Tokens, s.Heads, s.Size, deterministic, a.Deterministic(), forward,
				backward, equal, f, b,
				a.ForwardWorkspace(), a.BackwardWorkspace(), c, tuned.Round(time.Millisecond),
				made.Round(time.Millisecond))
			if deterministic && a.Deterministic() && !equal {
				t.Error("equal operands gave different bits")
			}
			m.try(a.Close())
		}
	}
}

// median is that of 30 runs, after 5, in milliseconds.
func (m *machine) median(run func() error) float64 {
	m.t.Helper()
	var marks [31]*cuda.Event
	for i := range marks {
		var err error
		marks[i], err = m.d.NewTimedEvent()
		m.must(err)
		defer func() { m.try(marks[i].Close()) }()
	}
	for range 5 {
		m.try(run())
	}
	for i, e := range marks {
		if i > 0 {
			m.try(run())
		}
		m.try(e.Record(m.s))
	}
	m.try(m.s.Synchronize())
	var ms []float64
	for i := 1; i < len(marks); i++ {
		d, err := marks[i].Elapsed(marks[i-1])
		m.try(err)
		ms = append(ms, float64(d)/1e6)
	}
	slices.Sort(ms)
	return ms[len(ms)/2]
}
