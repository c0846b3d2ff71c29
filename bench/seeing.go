package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep/bench/measure"
)

// seeingSteps are the compared steps of a run of train. They follow some slower steps.
const (
	seeingSteps   = 100
	seeingDiscard = 20
)

// ways are flags by which a person sees what a run does, and their allowed cost: the tokens a
// second without them over those with them.
var ways = []struct {
	what, flag string
	goal       float64
}{
	{"without --summary", "--summary=off", 0},
	{"with --summary on", "--summary=on", 1.01},
	{"with --trace FILE", "--trace=", 1.05}, // a file is added
}

// seeing compares train's speed with and without the flags that show where its time goes, in turn.
// Other processes slow steps down, never up, so the faster quarter of each run's steps counts.
func (b *bench) seeing() error {
	rates := make([][]float64, len(ways))
	for range b.Rounds {
		for i, way := range ways {
			flags := []string{"--summary=off", way.flag}
			if strings.HasSuffix(way.flag, "=") {
				flags[1] += filepath.Join(b.Dir, "short.json")
				flags = append(flags, "--overwrite")
			}
			rate, err := b.tokenRate(flags)
			if err != nil {
				return err
			}
			rates[i] = append(rates[i], rate)
		}
	}
	for i, way := range ways[1:] {
		b.CompareRates(measure.Row{What: "tokens a second of train, " + way.what, Ranks: 2,
			Ours: measure.Median(rates[i+1]), Unit: "tokens/s", Goal: way.goal},
			"the same "+ways[0].what, measure.Median(rates[0]))
	}
	for _, ext := range []string{".json", ".json.gz"} {
		if err := b.traceSize(ext); err != nil {
			return err
		}
	}
	return nil
}

// tokenRate returns the tokens a second of train on 2 ranks, in the faster quarter of its steps.
func (b *bench) tokenRate(flags []string) (float64, error) {
	steps, err := b.trainSteps(2, seeingSteps, flags)
	if err != nil {
		return 0, err
	}
	var rates []float64
	for _, s := range steps[seeingDiscard:] {
		rates = append(rates, s.TokS)
	}
	slices.Sort(rates)
	return rates[len(rates)*7/8], nil // the median of the faster quarter
}

// trainSteps runs the default training, and returns its steps.
func (b *bench) trainSteps(ranks, steps int, flags []string) ([]measure.TrainStep, error) {
	cmd := append(measure.MPIRun(ranks, b.Program("train"), "--device", "host", "--steps", strconv.Itoa(steps),
		"--val-batches", "0", "--sample", "0", "--json", "-", "--log-level", "warn"), flags...)
	out, err := measure.Output(cmd...)
	if err != nil {
		return nil, err
	}
	return measure.Steps(out, steps)
}

// traceSize measures the trace of 1,000 steps on 4 ranks.
func (b *bench) traceSize(ext string) error {
	const ranks, steps = 4, 1000
	name := filepath.Join(b.Dir, "long"+ext)
	if _, err := b.trainSteps(ranks, steps, []string{"--trace", name}); err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	dropped, err := droppedEvents(name)
	if err != nil {
		return err
	}
	b.Limit(measure.Row{What: fmt.Sprintf("trace of %d steps of train, %s", steps, strings.TrimPrefix(ext, ".")),
		Ranks: ranks, Ours: float64(info.Size()) / 1e6, Unit: "MB", Goal: 50,
		Parts: map[string]float64{"dropped_events": dropped}})
	return nil
}

// droppedEvents returns how many events a trace says that it lacks, in its first line.
func droppedEvents(name string) (n float64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return 0, err
		}
	}
	head := make([]byte, 1<<16)
	got, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, err
	}
	line, _, found := strings.Cut(string(head[:got]), `,"traceEvents":`)
	var file struct {
		OtherData *struct {
			Dropped map[string]float64 `json:"dropped_events"`
		}
	}
	if err := json.Unmarshal([]byte(line+"}"), &file); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if !found || file.OtherData == nil {
		return 0, fmt.Errorf("%s does not say what it lacks", name)
	}
	for _, k := range file.OtherData.Dropped {
		n += k
	}
	return n, nil
}
