package cudnn

import (
	"runtime"
	"testing"

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

// The choice for a large shape on this GPU is right, and gives equal bits where it promises them.
// -v shows it.
func TestGPUAttentionTuned(t *testing.T) {
	m := onGPU(t)
	s := Shape{8, 1024, 12, 64, elem.BFloat16}
	for _, deterministic := range []bool{true, false} {
		c, err := m.h.TuneAttention(s, deterministic)
		m.must(err)
		r := m.trial(s, deterministic)
		m.try(r.a.Close())
		r.a, err = m.h.NewAttention(s, deterministic, c)
		m.must(err)
		r.w = m.alloc(max(r.a.ForwardWorkspace(), r.a.BackwardWorkspace()))
		r.check(2)
		n := 2 * 3 * s.Batch * s.Tokens * s.Heads * s.Size
		first, equal := m.bits(r.pdqkv, n), true
		for range 5 {
			m.poison(r.w, r.a.BackwardWorkspace())
			m.try(r.backward())
			equal = equal && m.bits(r.pdqkv, n) == first
		}
		t.Logf("cuDNN %s, %+v, deterministic %v (%v): %+v, equal bits %v", Version(), s, deterministic,
			r.a.Deterministic(), c, equal)
		if r.a.Deterministic() && !equal {
			t.Error("equal operands gave different bits")
		}
		m.try(r.a.Close())
	}
}
