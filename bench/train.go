package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	rand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"lockstep/bench/measure"
	"lockstep/spmd/telemetry"
)

// trainBench is one run of bench train: GPT-2s of several sizes on GPUs, beside PyTorch.
type trainBench struct {
	besidePyTorch
	cases    []trainCase
	ranks    []int
	steps    int
	seq      int
	torch    bool
	parallel []string // PyTorch's ways over several GPUs, of torchWays
	more     []string // flags for bin/train
	measured []trained
}

// trainCase is a model and the sequences of a rank, as "gpt2:64".
type trainCase struct {
	model string
	batch int
}

// trained has one side's measurements of a case on a number of ranks.
type trained struct {
	trainCase
	ranks  int
	tokS   []float64 // of each round, by the clock on the wall
	p99    []float64 // of a step's time, in medians
	memory float64   // GB in use on the fullest GPU
	theirs []byTorch // in each way that did not fail
}

// torchWay is a way of PyTorch over several GPUs.
type torchWay struct {
	parallel string // as torch_train.py's flag has it
	peer     string // as a row has it
}

// torchWays are the known ways. On one GPU the first is the plain model.
var torchWays = []torchWay{{"ddp", "PyTorch, compiled"}, {"fsdp2", "PyTorch FSDP2, compiled"}}

func torchWayNames() []string {
	var n []string
	for _, w := range torchWays {
		n = append(n, w.parallel)
	}
	return n
}

// byTorch is PyTorch's measurement in one way.
type byTorch struct {
	torchWay
	tokS   []float64 // of each round
	memory float64   // GB that it reserved
}

// best returns the fastest way of PyTorch, by medians, or nil.
func (m *trained) best() *byTorch {
	var best *byTorch
	for i := range m.theirs {
		if w := &m.theirs[i]; best == nil || measure.Median(w.tokS) > measure.Median(best.tokS) {
			best = w
		}
	}
	return best
}

// trainGoals are the wanted ratios: how many times as fast as the peer.
var trainGoals = []struct {
	trainCase
	ranks int
	times float64
}{
	{trainCase{"gpt2", 64}, 1, 1.25}, {trainCase{"gpt2", 8}, 1, 1.35},
	{trainCase{"gpt2", 64}, 2, 1.28}, {trainCase{"gpt2", 8}, 2, 1.40},
	{trainCase{"gpt2", 64}, 4, 1.28}, {trainCase{"gpt2", 8}, 4, 1.45},
	{trainCase{"gpt2-medium", 32}, 1, 1.15}, {trainCase{"gpt2-xl", 8}, 1, 1.15},
	{trainCase{"gpt2-xl", 4}, 2, 1.15}, {trainCase{"gpt2-xl", 8}, 2, 1.15}, {trainCase{"gpt2-xl", 16}, 2, 1.15},
}

// fp8Goal is the goal for gpt2 with 64 sequences on one GPU and --fp8 all.
const fp8Goal = 1.45

// These are the other goals: the speed of 2 ranks as a part of twice one, by sequences of a rank;
// the 99th percentile of a step's time in medians; and GB in use for gpt2 with 64 sequences.
var scalingGoals = map[int]float64{64: 0.985, 8: 1.75 / 2}

const (
	stepP99Goal    = 1.03
	memoryGoalGB   = 24
	trainWarmSteps = 8 // that do not count: kernels load, graphs are captured
	trainGroup     = "train"
)

// trainCommand is bench train.
func trainCommand() error {
	t := trainBench{}
	var cases []string
	fs := pflag.NewFlagSet("bench train", pflag.ExitOnError)
	fs.StringSliceVar(&cases, "cases", []string{"gpt2:64", "gpt2:8"},
		"models and sequences of a rank: gpt2:64, gpt2-medium:32, gpt2-xl:8")
	fs.IntSliceVar(&t.ranks, "ranks", []int{1}, "numbers of ranks, one for each GPU")
	fs.IntVar(&t.Rounds, "rounds", 3, "turns of each side; the medians count")
	fs.IntVar(&t.steps, "steps", 40, fmt.Sprintf("steps of a turn, of which the first %d do not count", trainWarmSteps))
	fs.IntVar(&t.seq, "seq", 1024, "tokens of a sequence")
	fs.BoolVar(&t.torch, "torch", true, "compare with PyTorch, where Python has it")
	fs.StringSliceVar(&t.parallel, "torch-parallel", torchWayNames()[:1],
		"PyTorch's ways over several GPUs, of which the fastest counts: "+strings.Join(torchWayNames(), ", "))
	fs.StringSliceVar(&t.more, "train", nil, "more flags of bin/train, such as --train=--graph=off")
	t.flags(fs, "PyTorch")
	if err := measure.Parse(fs); err != nil {
		return err
	}
	for _, c := range cases {
		model, batch, _ := strings.Cut(c, ":")
		n, err := strconv.Atoi(batch)
		if err != nil || n < 1 || model == "" {
			return fmt.Errorf("--cases %s: want MODEL:SEQUENCES", c)
		}
		t.cases = append(t.cases, trainCase{model, n})
	}
	if t.Rounds < 1 || t.steps < trainWarmSteps+2 {
		return fmt.Errorf("--rounds %d, --steps %d: must be at least 1 and %d", t.Rounds, t.steps, trainWarmSteps+2)
	}
	for _, p := range t.parallel {
		if !slices.Contains(torchWayNames(), p) {
			return fmt.Errorf("--torch-parallel %s: want %s", p, strings.Join(torchWayNames(), ", "))
		}
	}
	if len(t.parallel) == 0 {
		return errors.New("--torch-parallel is empty: --torch=false compares with nobody")
	}
	return t.onGPUs(fs, trainGroup, t.run)
}

func (t *trainBench) run() error {
	if t.torch {
		if _, err := measure.Output(t.python, "-c", "import torch"); err != nil {
			fmt.Fprintf(os.Stderr, "bench: PyTorch is left out: %s cannot import torch\n", t.python)
			t.torch = false
		}
	}
	most := slices.MaxFunc(t.cases, func(a, b trainCase) int { return a.batch - b.batch }).batch * slices.Max(t.ranks)
	tokens, err := randomTokens(t.Dir, 4*most*t.seq+2)
	if err != nil {
		return err
	}
	defer t.Doing.Done()
	for i, c := range t.cases {
		for j, n := range t.ranks {
			m := trained{trainCase: c, ranks: n, theirs: t.peers(n)}
			for round := range t.Rounds {
				t.Doing.Say(fmt.Sprintf("%s, %d sequences, on %d ranks", c.model, c.batch, n),
					(i*len(t.ranks)+j)*t.Rounds+round+1, len(t.cases)*len(t.ranks)*t.Rounds, len(t.Rows))
				if err := t.ours(&m, tokens); err != nil {
					return err
				}
				if err := t.theirs(&m); err != nil {
					return err
				}
			}
			t.measured = append(t.measured, m)
			t.rowsOf(m)
			if err := t.keep(); err != nil {
				return err
			}
		}
	}
	t.Doing.Done()
	t.print()
	return nil
}

// keep writes the rows so far among the file's rows of other cases.
func (t *trainBench) keep() error {
	file := filepath.Join(t.Out, "gpu.jsonl")
	rows, err := measure.ReadRows(file)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(r measure.Row) bool {
		return slices.ContainsFunc(t.Rows, func(m measure.Row) bool { return m.What == r.What && m.Ranks == r.Ranks })
	})
	return measure.WriteRows(file, append(rows, t.Rows...))
}

// randomTokens writes n random tokens of GPT-2's vocabulary.
func randomTokens(dir string, n int) (string, error) {
	const vocabulary = 50257
	rng := rand.New(rand.NewPCG(1, 2))
	return writeTokens(filepath.Join(dir, "random.bin"), n, func(int) uint16 { return uint16(rng.IntN(vocabulary)) })
}

// writeTokens writes n tokens in the format of llm.c's token files: 256 words of header, then 16
// bits a token. Source: llm.c, dev/data/data_common.py, write_datafile.
func writeTokens(name string, n int, token func(i int) uint16) (string, error) {
	const words, magic, version = 256, 20240520, 1
	b := make([]byte, 4*words, 4*words+2*n)
	for i, v := range []uint32{magic, version, uint32(n)} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	for i := range n {
		b = binary.LittleEndian.AppendUint16(b, token(i))
	}
	return name, os.WriteFile(name, b, 0o666)
}

// ours runs bin/train once. Its rate is by the wall clock, from the line of one step to the line of
// the last.
func (t *trainBench) ours(m *trained, tokens string) error {
	cmd := append(measure.MPIRun(m.ranks, t.Program("train"), "--model", m.model, "--tokens", "gpt2", "--data", tokens,
		"--cache", t.Dir, "--dtype", "bfloat16", "--seq", strconv.Itoa(t.seq), "--batch", strconv.Itoa(m.batch),
		"--global-batch", strconv.Itoa(m.batch*m.ranks), "--steps", strconv.Itoa(t.steps), "--val-batches", "0",
		"--sample", "0", "--json", "-", "--log-level", "warn", "--device", "cuda"), t.more...)
	memory := watchMemory()
	defer func() { m.memory = max(m.memory, memory()) }()
	all, err := stepsOf(cmd, t.steps)
	if err != nil {
		return err
	}
	m.tokS = append(m.tokS, rate(all[trainWarmSteps-1], all[len(all)-1]))
	var us []float64
	for _, l := range all[trainWarmSteps:] {
		us = append(us, l.MS*1e3)
	}
	times := telemetry.StatsOf(us)
	m.p99 = append(m.p99, times.P99US/times.MedianUS)
	return nil
}

// timedStep is a step that bin/train printed, and when its line came.
type timedStep struct {
	measure.TrainStep
	at time.Time
}

// rate returns the tokens a second from one step to another, for any batch of --train.
func rate(first, last timedStep) float64 {
	return float64(last.Tokens-first.Tokens) / last.at.Sub(first.at).Seconds()
}

// stepsOf runs bin/train, which must print so many steps.
func stepsOf(cmd []string, want int) (all []timedStep, err error) {
	err = stream(cmd, func(text string) error {
		s := timedStep{at: time.Now()}
		if !strings.HasPrefix(text, "{") {
			return nil
		}
		if err := json.Unmarshal([]byte(text), &s.TrainStep); err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		if !s.Summary {
			all = append(all, s)
		}
		return nil
	})
	if err == nil && len(all) != want {
		err = fmt.Errorf("train printed %d steps, want %d", len(all), want)
	}
	return all, err
}

// peers returns PyTorch's ways on a number of ranks, not measured yet.
func (t *trainBench) peers(ranks int) (all []byTorch) {
	for i, w := range torchWays {
		if t.torch && (ranks > 1 && slices.Contains(t.parallel, w.parallel) || ranks == 1 && i == 0) {
			all = append(all, byTorch{torchWay: w})
		}
	}
	return all
}

// theirs runs PyTorch once in each way. A way that fails is left out with its measurements, as long
// as another is left.
func (t *trainBench) theirs(m *trained) error {
	var left []byTorch
	var failed []error
	for _, w := range m.theirs {
		if err := t.torchRun(m, &w); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", w.peer, err))
			continue
		}
		left = append(left, w)
	}
	if len(left) == 0 {
		return errors.Join(failed...)
	}
	m.theirs = left
	for _, err := range failed {
		t.Doing.Done()
		fmt.Fprintf(os.Stderr, "bench: left out: %v\n", err)
	}
	return nil
}

func (t *trainBench) torchRun(m *trained, w *byTorch) error {
	out, err := measure.Output(t.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
		strconv.Itoa(m.ranks), filepath.Join(t.pythonDir, "torch_train.py"), "--parallel", w.parallel, "--model",
		m.model, "--batch", strconv.Itoa(m.batch), "--seq", strconv.Itoa(t.seq), "--steps",
		strconv.Itoa(t.steps-trainWarmSteps), "--warmup", strconv.Itoa(trainWarmSteps))
	if err != nil {
		return err
	}
	type result struct {
		Parallel string  `json:"parallel"`
		TokS     float64 `json:"tok_s"`
		MemGB    float64 `json:"mem_gb"`
	}
	all, err := measure.Lines[result](out)
	if err != nil {
		return err
	}
	if len(all) != 1 || all[0].TokS <= 0 || all[0].Parallel != w.parallel {
		return fmt.Errorf("torch_train.py --parallel %s printed %q", w.parallel, out)
	}
	w.tokS = append(w.tokS, all[0].TokS)
	w.memory = max(w.memory, all[0].MemGB)
	return nil
}

// stream runs a command and gives fn each line of its standard output as it comes.
func stream(cmd []string, fn func(line string) error) error {
	c := exec.Command(cmd[0], cmd[1:]...)
	c.Env = measure.ProgramEnv()
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	limit := time.AfterFunc(measure.Longest, func() { _ = c.Process.Kill() }) // it may have ended
	defer limit.Stop()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for err == nil && lines.Scan() {
		err = fn(lines.Text())
	}
	err = errors.Join(err, lines.Err(), c.Wait())
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd, " "), err, &errs)
	}
	return nil
}

// watchMemory begins to observe the memory in use on the machine's GPUs. The returned function ends
// that, and returns the most that was in use on one, in GB, or 0 if nvidia-smi does not say.
func watchMemory() func() float64 {
	c := exec.Command("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "200")
	out, err := c.StdoutPipe()
	if err != nil || c.Start() != nil {
		return func() float64 { return 0 }
	}
	most := make(chan float64)
	go func() {
		var gb float64
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if mib, err := strconv.ParseFloat(strings.TrimSpace(lines.Text()), 64); err == nil {
				gb = max(gb, mib*(1<<20)/1e9)
			}
		}
		most <- gb
	}()
	return func() float64 {
		_ = c.Process.Kill() // its pipe ends then, which the goroutine waits for
		gb := <-most
		_ = c.Wait() // killed
		return gb
	}
}

// rowsOf adds the rows of a case.
func (t *trainBench) rowsOf(m trained) {
	name := fmt.Sprintf("%s, %d sequences of %d tokens a GPU, bfloat16", m.model, m.batch, t.seq)
	if len(t.more) > 0 {
		name += ", " + strings.Join(t.more, " ")
	}
	goal := 1.0
	for _, g := range trainGoals {
		if g.trainCase == m.trainCase && g.ranks == m.ranks {
			goal = 1 / g.times
		}
	}
	if slices.Contains(t.more, "--fp8=all") && m.trainCase == (trainCase{"gpt2", 64}) && m.ranks == 1 {
		goal = 1 / fp8Goal
	}
	r := measure.Row{What: name + ": tokens a second", Ranks: m.ranks, Ours: measure.Median(m.tokS), Unit: "tok/s",
		Goal: goal}
	if w := m.best(); w != nil {
		t.CompareRates(r, w.peer, measure.Median(w.tokS))
	}
	t.Limit(measure.Row{What: name + ": 99th percentile of a step", Ranks: m.ranks, Ours: measure.Median(m.p99),
		Unit: "medians", Goal: stepP99Goal})
	if m.trainCase == (trainCase{"gpt2", 64}) && m.memory > 0 {
		t.Limit(measure.Row{What: name + ": memory in use on a GPU", Ranks: m.ranks, Ours: m.memory, Unit: "GB",
			Goal: memoryGoalGB})
	}
	for _, one := range t.measured {
		if part, ok := scalingGoals[m.batch]; ok && one.trainCase == m.trainCase && one.ranks == 1 && m.ranks > 1 {
			t.Limit(measure.Row{What: name + ": time of a token, in parts of that on one GPU over the GPUs",
				Ranks: m.ranks, Ours: float64(m.ranks) * measure.Median(one.tokS) / measure.Median(m.tokS),
				Unit: "times", Goal: 1 / part})
		}
	}
}

// print prints the table for people. A case has a line for each way of PyTorch.
func (t *trainBench) print() {
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\tB a GPU\tGPUs\ttok/s\tPyTorch\ttimes\tp99/median\tGB\tPyTorch GB\tpeer\t")
	for _, m := range t.measured {
		ours := measure.Median(m.tokS)
		line := func(theirs, times string, theirGB float64, peer string) {
			fmt.Fprintf(w, "%s\t%d\t%d\t%.0f\t%s\t%s\t%.3f\t%.1f\t%.1f\t%s\t\n",
				m.model, m.batch, m.ranks, ours, theirs, times, measure.Median(m.p99), m.memory, theirGB, peer)
		}
		for _, one := range m.theirs {
			rate := measure.Median(one.tokS)
			line(fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.3f", ours/rate), one.memory, one.peer)
		}
		if len(m.theirs) == 0 {
			line("-", "-", 0, "-")
		}
	}
	w.Flush()
}
