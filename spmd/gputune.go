package spmd

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
	"lockstep/spmd/internal/control"
)

// TuneGemm finds the fastest algorithm for every product that has been enqueued or
// captured so far, and has later Gemms of these shapes use it; graphs captured before
// keep what they have. A program that captures its step does so, calls TuneGemm,
// closes the graph and captures it anew; one that does not runs its first step first.
//
// Rank 0 times what cuBLASLt proposes, each with its epilogue, on random numbers in
// memory of its own, for up to 0.1 s a shape, and all ranks take its choice. The choice
// is kept in the cache folder by device, version of the library and shape, and found
// there the next time; the log says what was timed, and how long that took. A shape
// without room for its operands beside what is allocated keeps the library's first choice, as
// does all that no TuneGemm has seen, whatever is in the folder.
//
// An algorithm may round otherwise than another: results have the same bits in two
// runs whose choices are the same, that is, with the same folder.
//
// Collective, blocking: it waits for the device, and no products may be enqueued
// meanwhile. It changes nothing where the device is the host.
// Source: cublasLt.h, cublasLtMatmulAlgoGetHeuristic.
func (w *World) TuneGemm() error {
	if w.gpu == nil {
		return nil
	}
	if w.capturing.Load() > 0 {
		return fmt.Errorf("%s: TuneGemm: a stream is being captured", ccall.At())
	}
	var news tuned
	if w.Rank() == 0 {
		if err := w.tune(&news); err != nil {
			news.Failure = err.Error()
		}
	}
	if err := w.channel.Tell(control.Choose, &news, 0); err != nil {
		return fmt.Errorf("%s: TuneGemm: %w", ccall.At(), err)
	}
	if news.Failure != "" {
		return fmt.Errorf("%s: TuneGemm: rank 0: %s", ccall.At(), news.Failure)
	}
	return w.adopt(&news)
}

// tuned is what rank 0 tells the others.
type tuned struct {
	Device  string
	Version int
	Chosen  []tunedShape
	Failure string
}

type tunedShape struct {
	Shape  string // as it names itself
	Choice cublas.Choice
}

// tuneLimit is the time for a shape.
const tuneLimit = 100 * time.Millisecond

// tune times the shapes that have no choice yet, and puts all that have one in news.
func (w *World) tune(news *tuned) error {
	g := w.gpu
	if !g.hasLt.Load() {
		return nil
	}
	if err := w.quiet(); err != nil {
		return err
	}
	if err := g.dev.Synchronize(); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, c := range g.chosen {
		known[c.Shape] = true
	}
	var fresh []cublas.Shape
	for _, sh := range g.lt.Shapes() {
		if !known[sh.String()] {
			fresh = append(fresh, sh)
		}
	}
	news.Device, news.Version = g.dev.Name(), g.lt.Version()
	start := time.Now()
	cached, slow, fast := 0, time.Duration(0), time.Duration(0)
	for _, sh := range fresh {
		c, t, err := g.tuneShape(sh)
		switch {
		case errors.Is(err, cuda.ErrOutOfMemory):
			w.Log.Warn().Str("shape", sh.String()).Msg("TuneGemm: no memory to time this product: it keeps cuBLASLt's first choice")
			continue
		case err != nil:
			return err
		case t.Tried == 0:
			cached++
		}
		slow, fast = slow+t.First, fast+t.Best
		g.chosen = append(g.chosen, tunedShape{sh.String(), c})
		w.Log.Debug().Str("shape", sh.String()).Int("tried", t.Tried).Float64("first_ms", t.First.Seconds()*1e3).Float64("ms", t.Best.Seconds()*1e3).
			Float64("tflops", sh.Flops()/max(t.Best, 1).Seconds()/1e12).Msg("TuneGemm")
	}
	news.Chosen = g.chosen
	if len(fresh) > 0 {
		log := w.Log.Info().Int("products", len(fresh)).Int("from_cache", cached).Float64("seconds", time.Since(start).Seconds())
		if slow > 0 {
			log = log.Float64("gain_percent", 100*(1-float64(fast)/float64(slow)))
		}
		log.Msg("TuneGemm: algorithms for matrix products")
	}
	return nil
}

// tuneShape takes a choice from the cache, with a Timing of 0, or makes one and keeps it.
func (g *gpu) tuneShape(sh cublas.Shape) (c cublas.Choice, t cublas.Timing, err error) {
	cache := nvrtc.DefaultCache()
	name := fmt.Sprintf("cublasLt %d on %s: %v", g.lt.Version(), g.dev.Name(), sh)
	if data, ok := cache.Get(name); ok && json.Unmarshal(data, &c) == nil {
		return c, t, nil
	}
	s, err := g.dev.NewStream(0)
	if err != nil {
		return c, t, err
	}
	defer func() { err = cmp.Or(err, s.Close()) }()
	if c, t, err = g.lt.Tune(s, sh, tuneLimit); err != nil {
		return c, t, err
	}
	data, err := json.Marshal(c)
	if err == nil {
		_ = cache.Put(name, data) // loadKernels has said why the folder keeps nothing
	}
	return c, t, err
}

// adopt has this rank's products use rank 0's choices.
func (w *World) adopt(news *tuned) error {
	g := w.gpu
	if !g.hasLt.Load() || len(news.Chosen) == 0 {
		return nil
	}
	if news.Device != g.dev.Name() || news.Version != g.lt.Version() {
		w.Log.Warn().Str("rank_0", fmt.Sprintf("%s, cuBLASLt %d", news.Device, news.Version)).Str("here", fmt.Sprintf("%s, cuBLASLt %d", g.dev.Name(), g.lt.Version())).
			Msg("TuneGemm: another device or library than rank 0's: this rank keeps cuBLASLt's first choices")
		return nil
	}
	chosen := map[string]cublas.Choice{}
	for _, c := range news.Chosen {
		chosen[c.Shape] = c.Choice
	}
	for _, sh := range g.lt.Shapes() {
		if c, ok := chosen[sh.String()]; ok {
			if err := g.lt.Choose(sh, c); err != nil {
				return fmt.Errorf("%s: TuneGemm: %w", ccall.At(), err)
			}
		}
	}
	return nil
}
