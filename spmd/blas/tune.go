package blas

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lockstep/cuda"
	"lockstep/cuda/cublas"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Tune finds the fastest algorithm for every product of w that has been enqueued or captured so
// far. Later Gemms of these shapes use it; earlier graphs keep theirs. A program that captures its
// step does so, calls Tune, closes the graph and captures it anew. Another program runs its first
// step first.
//
// Rank 0 times the algorithms that cuBLASLt proposes, each with its epilogue, for up to 0.1 s a
// shape. The operands are random numbers in memory of its own. All ranks take its choice. The
// choice is kept in the cache folder by device, version of the library and shape, and found there
// the next time. The log says what was timed, and how long that took.
//
// A shape keeps the library's first choice if there is no room for its operands beside the
// allocated memory. So does a shape that no Tune has seen, whatever is in the folder.
//
// Algorithms may round differently: two runs have the same bits if their choices are the same, that
// is, with the same folder.
//
// Collective, blocking: it waits for the device, and no products may be enqueued meanwhile. On the
// host it changes nothing. Source: cublasLt.h, cublasLtMatmulAlgoGetHeuristic.
func Tune(w *spmd.World) error {
	if w.OnHost() {
		return nil
	}
	h := handles.Of(w)
	choice, err := library.Choose(w, "blas.Tune", h.tune)
	if err != nil {
		return err
	}
	return h.adopt(&choice)
}

// tuned is rank 0's message to the others.
type tuned struct {
	Device  string
	Version int
	Chosen  []tunedShape
}

type tunedShape struct {
	Shape  string // as it names itself
	Choice cublas.Choice
}

// tuneLimit is the time for a shape.
const tuneLimit = 100 * time.Millisecond

// tune times the shapes that have no choice yet, and returns all that have one.
func (h *handle) tune() (news tuned, err error) {
	if !h.hasLt.Load() {
		return news, nil
	}
	if err := library.Quiet(h.w); err != nil {
		return news, err
	}
	if err := library.GPU(h.w).Synchronize(); err != nil {
		return news, err
	}
	known := map[string]bool{}
	for _, c := range h.chosen {
		known[c.Shape] = true
	}
	var fresh []cublas.Shape
	for _, sh := range h.lt.Shapes() {
		if !known[sh.String()] {
			fresh = append(fresh, sh)
		}
	}
	news.Device, news.Version = library.GPU(h.w).Name(), h.lt.Version()
	start := time.Now()
	cached, slow, fast := 0, time.Duration(0), time.Duration(0)
	for _, sh := range fresh {
		c, t, err := h.tuneShape(sh)
		switch {
		case errors.Is(err, cuda.ErrOutOfMemory):
			h.w.Log().Warn().Str("shape", sh.String()).Msg(
				"blas.Tune: no memory to time this product: it keeps cuBLASLt's first choice")
			continue
		case err != nil:
			return news, err
		case t.Tried == 0:
			cached++
		}
		slow, fast = slow+t.First, fast+t.Best
		h.chosen = append(h.chosen, tunedShape{sh.String(), c})
		h.w.Log().Debug().Str("shape", sh.String()).Int("tried", t.Tried).Float64("first_ms",
			t.First.Seconds()*1e3).Float64("ms", t.Best.Seconds()*1e3).
			Float64("tflops", sh.Flops()/max(t.Best, 1).Seconds()/1e12).Msg("blas.Tune")
	}
	news.Chosen = h.chosen
	if len(fresh) > 0 {
		log := h.w.Log().Info().Int("products", len(fresh)).Int("from_cache", cached).Float64("seconds",
			time.Since(start).Seconds())
		if slow > 0 {
			log = log.Float64("gain_percent", 100*(1-float64(fast)/float64(slow)))
		}
		log.Msg("blas.Tune: algorithms for matrix products")
	}
	return news, nil
}

// tuneShape takes a choice from the cache, with a Timing of 0, or makes one and keeps it.
func (h *handle) tuneShape(sh cublas.Shape) (c cublas.Choice, t cublas.Timing, err error) {
	cache := nvrtc.DefaultCache()
	name := fmt.Sprintf("cublasLt %d on %s: %v", h.lt.Version(), library.GPU(h.w).Name(), sh)
	if data, ok := cache.Get(name); ok && json.Unmarshal(data, &c) == nil {
		return c, t, nil
	}
	defer cache.Making(name)()
	s, err := library.GPU(h.w).NewStream(0)
	if err != nil {
		return c, t, err
	}
	defer func() { err = cmp.Or(err, s.Close()) }()
	if c, t, err = h.lt.Tune(s, sh, tuneLimit); err != nil {
		return c, t, err
	}
	data, err := json.Marshal(c)
	if err == nil {
		_ = cache.Put(name, data) // the start has said why the folder keeps nothing
	}
	return c, t, err
}

// adopt makes this rank's products use rank 0's choices.
func (h *handle) adopt(news *tuned) error {
	w := h.w
	if !h.hasLt.Load() || len(news.Chosen) == 0 {
		return nil
	}
	if news.Device != library.GPU(h.w).Name() || news.Version != h.lt.Version() {
		w.Log().Warn().Str("rank_0", fmt.Sprintf("%s, cuBLASLt %d", news.Device, news.Version)).Str("here",
			fmt.Sprintf("%s, cuBLASLt %d", library.GPU(h.w).Name(), h.lt.Version())).
			Msg("blas.Tune: another device or library than rank 0's: this rank keeps cuBLASLt's first choices")
		return nil
	}
	chosen := map[string]cublas.Choice{}
	for _, c := range news.Chosen {
		chosen[c.Shape] = c.Choice
	}
	for _, sh := range h.lt.Shapes() {
		if c, ok := chosen[sh.String()]; ok {
			if err := h.lt.Choose(sh, c); err != nil {
				return fmt.Errorf("%s: blas.Tune: %w", ccall.At(), err)
			}
		}
	}
	return nil
}
