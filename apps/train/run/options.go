package run

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/internal/cli"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// Options is every setting of a run. New holds the defaults.
type Options struct {
	model, DType, FP8, graph       string
	shard, recompute, balance      string
	layers, heads, channels        int // 0: as the model has it
	bucketMiB                      int // 0: as the device wants it
	dp, tp, pp                     int // replicas (0: all remaining ranks); parts of each layer; stages of a pipeline
	steps, Batch, Seq, GlobalBatch int
	growBatch                      int      // sequences of the first steps; 0: GlobalBatch
	optimizer, schedule            string   // "": as the model is usually trained
	without                        []string // parts of a modern model
	lr, minLR, weightDecay, clip   float64
	embedLR, headLR, vectorLR      float64 // Muon: rates of AdamW
	beta1, beta2                   float64
	warmup                         int
	valEvery, valBatches           int
	logEvery                       int
	audit                          int
	skipBad                        int
	tokens                         string
	Data, valData                  []string
	Cache                          string
	initFrom                       string
	Checkpoint, resume             string
	saveEvery, keep, RequeueStatus int
	runDir                         *string
	sample                         int
	prompt                         string
	temperature                    float64

	fixedGlobal bool         // --global-batch is given, or that of the run that goes on
	onHost      bool         // the device is the host, as settle has found
	need        int          // bytes of buffers that a rank is going to need, from fit
	early       *atomic.Bool // of all ranks of the process: see Early

	// Check computes these from the above.
	Inputs    []text.Place
	valInputs []text.Place   // empty if validation takes a part of inputs
	weights   *layout.Folder // to begin with; nil if they are drawn
	noTokens  string         // files that weights lacks, so that its tokens are unknown
	Tok       text.Tokenizer
	Cfg       layout.Config
	adam      trainer.AdamConfig
	rate      trainer.Schedule
	usual     string                 // of habits
	Given     func(flag string) bool // whether the command line has the flag
	known     func() error           // refuses values of flags that are none of their choices
	json      func() string          // --json, which belongs to the common flags
}

// habits are the usual settings for training a model. GPT-2's sizes have the rates of Brown et al.,
// Language models are few-shot learners, table 2.1. The tiny model takes small, fast steps.
//
// Modern models have the rates of Muon. Those of the larger ones are for
// steps of batchOfRate sequences.
var habits = map[string]struct {
	lr, beta2  float64
	seq, batch int
}{
	"tiny":        {3e-3, 0.99, 64, 4},
	"gpt2":        {6e-4, 0.95, 1024, 4},
	"gpt2-medium": {3e-4, 0.95, 1024, 4},
	"gpt2-large":  {2.5e-4, 0.95, 1024, 4},
	"gpt2-xl":     {2e-4, 0.95, 1024, 4},

	"modern-tiny":   {0.03, 0.95, 64, 4},
	"modern":        {0.03, 0.95, 1024, 16},
	"modern-medium": {0.03, 0.95, 1024, 16},
}

// New returns the default settings of a run.
func New() *Options {
	return &Options{
		model: "tiny", FP8: "off", graph: "auto", shard: "off", recompute: "off", balance: "auto", tp: 1, pp: 1,
		steps: 1500, embedLR: trainer.DefaultMuon.Embeddings, headLR: trainer.DefaultMuon.Heads,
		vectorLR: trainer.DefaultMuon.Vectors, valBatches: 4, tokens: "bytes", sample: 400, temperature: 0.8,
		resume: "auto", keep: 3, early: new(atomic.Bool),
	}
}

// Early reports whether Run has ended before the last step because of a signal.
func (o *Options) Early() bool { return o.early.Load() }

// Flags adds the flags of a run to fs.
func (o *Options) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.model, "model", o.model,
		"the model: tiny, gpt2, gpt2-medium, gpt2-large or gpt2-xl, which are GPT-2's form, or modern-tiny, modern "+
			"or modern-medium, which learn sooner")
	fs.StringSliceVar(&o.without, "without", nil,
		"parts of a modern model to leave out, to see what each brings: "+strings.Join(layout.PartNames(), ", "))
	fs.StringVar(&o.DType, "dtype", o.DType,
		"type of the activations: float32, or bfloat16 with float32 weights and gradients (default bfloat16 on a "+
			"GPU, float32 on the host)")
	fs.StringVar(&o.FP8, "fp8", o.FP8,
		"which products of bfloat16 activations, forward and for their gradients, are of 8-bit floats, on GPUs from "+
			"compute capability 8.9 on: off, head, or all")
	fs.StringVar(&o.graph, "graph", o.graph, "whether steps are captured once and replayed: auto (on a GPU), on or off")
	fs.StringVar(&o.shard, "shard", o.shard,
		"what the ranks share of the training state, so that each needs less memory: off, optimizer (the moments), "+
			"gradients (them too) or parameters (all)")
	fs.StringVar(&o.recompute, "recompute", o.recompute,
		"activations that are computed once more instead of kept, so that there is room for more: off, gelu (those "+
			"inside the MLPs) or block (all of a layer)")
	fs.IntVar(&o.dp, "dp", o.dp, "replicas of the model, that learn from different sequences (default the ranks "+
		"that --tp and --pp leave); the three multiply to the number of ranks")
	fs.IntVar(&o.tp, "tp", o.tp, "ranks that each layer is divided among, by its heads and the channels of its MLP: "+
		"neighbours, best with GPUs of one node")
	fs.IntVar(&o.pp, "pp", o.pp, "stages of a pipeline: so many ranks have some layers of the model each, and "+
		"micro-batches go from one to the next; the other ranks are replicas")
	fs.StringVar(&o.balance, "balance", o.balance,
		"by which times the layers are dealt out to the stages of --pp: measured at the start, rates (those of an "+
			"H200), or auto (measured on a GPU)")
	fs.IntVar(&o.bucketMiB, "bucket-mib", o.bucketMiB,
		"MiB of gradients that go between the ranks in one all-reduce, while the backward pass goes on (default 4; "+
			"on GPUs 1024, of several nodes or a modern model 64)")
	fs.IntVar(&o.layers, "layers", o.layers, "transformer blocks (default the model's)")
	fs.IntVar(&o.heads, "heads", o.heads, "attention heads of a block (default the model's)")
	fs.IntVar(&o.channels, "channels", o.channels, "width of the model, divisible by the heads (default the model's)")
	fs.IntVar(&o.Seq, "seq", o.Seq, "tokens of a sequence (default the model's: 64 for tiny, 1024 for the others)")
	fs.IntVar(&o.steps, "steps", o.steps, "optimizer steps")
	fs.IntVar(&o.Batch, "batch", o.Batch,
		"sequences a rank takes in one micro-step; 0 takes as many as fit into the GPU's memory, or a quarter of "+
			"the host's (default 4, 16 for modern and modern-medium)")
	fs.IntVar(&o.GlobalBatch, "global-batch", o.GlobalBatch,
		"sequences of a step over all ranks, accumulated in micro-steps (default --batch times the ranks)")
	fs.IntVar(&o.growBatch, "grow-batch", o.growBatch,
		"sequences of the first steps, over all ranks: they double after equal parts of --steps, up to "+
			"--global-batch, and the learning rate rises with their root (default all steps take --global-batch)")
	fs.StringVar(&o.optimizer, "optimizer", o.optimizer,
		"adamw, or muon for the matrices of the layers with AdamW for all else (default muon for modern models, "+
			"adamw for the others)")
	fs.StringVar(&o.schedule, "schedule", o.schedule,
		"how the learning rate falls after its rise: cosine, or wsd, in a line over the second half of --steps "+
			"(default wsd with muon)")
	fs.Float64Var(&o.lr, "lr", o.lr,
		"peak learning rate, with muon that of the matrices (default the model's: 0.003 for tiny, 0.0006 for gpt2, "+
			"0.03 for modern-tiny, and for the other modern ones where a step takes 64 sequences or more, less by "+
			"the root of how many where it takes less)")
	fs.Float64Var(&o.embedLR, "embed-lr", o.embedLR, "Muon: peak learning rate of embeddings")
	fs.Float64Var(&o.headLR, "head-lr", o.headLR, "Muon: peak learning rate of the head")
	fs.Float64Var(&o.vectorLR, "vector-lr", o.vectorLR, "Muon: peak learning rate of vectors and numbers")
	fs.Float64Var(&o.minLR, "min-lr", o.minLR,
		"learning rate at the end, as a part of the peak (default 0.1, with wsd 0.05)")
	fs.IntVar(&o.warmup, "warmup-steps", o.warmup,
		"steps in which the learning rate rises (default a twentieth of --steps, none with muon)")
	fs.Float64Var(&o.weightDecay, "weight-decay", o.weightDecay,
		"weight decay of matrices (default 0.1, none with muon)")
	fs.Float64Var(&o.beta1, "beta1", o.beta1, "AdamW: decay of the gradient's average (default 0.9, beside muon 0.8)")
	fs.Float64Var(&o.beta2, "beta2", o.beta2,
		"AdamW: decay of the squared gradient's average (default 0.99 for tiny, 0.95 for the others)")
	fs.Float64Var(&o.clip, "clip", o.clip, "largest norm of the gradient; 0 is no limit (default 1, with muon 0)")
	fs.IntVar(&o.valEvery, "val-every", o.valEvery, "steps between validations; 0 validates at the end only")
	fs.IntVar(&o.valBatches, "val-batches", o.valBatches, "global batches of one validation; 0 leaves it out")
	fs.IntVar(&o.logEvery, "log-every", o.logEvery, "steps between log lines (default a twentieth of --steps)")
	fs.IntVar(&o.audit, "audit", o.audit,
		"steps between checks that all ranks hold the same weights; 0 checks at the end and before each checkpoint "+
			"only")
	fs.StringVar(&o.initFrom, "init-from", "",
		"`FOLDER` with the weights to begin with, Hugging Face's GPT-2: config.json and model.safetensors; its "+
			"shape and tokens count")
	fs.IntVar(&o.skipBad, "skip-bad-steps", 0,
		"leave out steps whose loss or gradient norm is not finite, instead of ending the run; up to so many in a row")
	fs.Lookup("skip-bad-steps").NoOptDefVal = "10"
	fs.StringVar(&o.Checkpoint, "checkpoint", "",
		"`DIR` to save the run in, and to go on from; what --run-dir is for goes there, too, where that is not given")
	fs.IntVar(&o.saveEvery, "save-every", o.saveEvery,
		"steps between checkpoints (default a tenth of --steps); 0 saves at the end, and where a signal ends the "+
			"run, only")
	fs.IntVar(&o.keep, "keep", o.keep,
		"checkpoints to keep, the newest ones; beside them the last one, while neither a step nor a validation has "+
			"shown it to be good")
	fs.StringVar(&o.resume, "resume", o.resume,
		"auto goes on from the newest checkpoint, if there is one; must insists on one; never begins anew, in a "+
			"folder without any")
	fs.IntVar(&o.RequeueStatus, "requeue-status", o.RequeueStatus,
		"exit status where SIGTERM or SIGUSR1 has ended the run after a checkpoint")
	o.runDir = telemetry.FolderFlag(fs)
	fs.StringVar(&o.tokens, "tokens", o.tokens, "bytes, or gpt2 for GPT-2's byte-pair encoding")
	fs.StringArrayVar(&o.Data, "data", nil,
		"text to learn from: `FILE`, folder or glob, or token files of llm.c (.bin); repeatable (default the Go "+
			"toolchain's source)")
	fs.StringArrayVar(&o.valData, "val-data", nil,
		"text or token files to validate on; repeatable (default the last twentieth of --data)")
	fs.StringVar(&o.Cache, "cache", "", "`DIR` for token files (default lockstep/tokens in the user's cache folder)")
	spmd.MayDiffer(fs, "cache")
	fs.IntVar(&o.sample, "sample", o.sample, "tokens of text to write at the end; 0 is none")
	fs.StringVar(&o.prompt, "prompt", "",
		"text that the sample goes on from; without --data, where that is Go's sources, the head of a function")
	fs.Float64Var(&o.temperature, "temperature", o.temperature,
		"of the sample: 0 takes the likeliest token, 1 the model's own distribution")
	cli.Group(fs, "Flags of the model", "model", "without", "layers", "heads", "channels", "seq", "dtype", "fp8",
		"init-from")
	cli.Group(fs, "Flags of the text", "data", "val-data", "tokens", "cache")
	cli.Group(fs, "Flags of the optimizer", "steps", "batch", "global-batch", "grow-batch", "optimizer", "schedule",
		"lr", "embed-lr", "head-lr", "vector-lr", "min-lr", "warmup-steps", "weight-decay", "beta1", "beta2", "clip",
		"skip-bad-steps")
	cli.Group(fs, "Flags of how the ranks divide the run", "dp", "tp", "pp", "shard", "balance")
	cli.Group(fs, "Flags of memory and speed", "graph", "recompute", "bucket-mib")
	cli.Group(fs, "Flags of checkpoints", "checkpoint", "save-every", "keep", "resume", "requeue-status", "audit")
	cli.Group(fs, "Flags of the sample at the end", "sample", "prompt", "temperature")
	cli.Group(fs, cli.Output, "val-every", "val-batches", "log-every")
	for flag, values := range map[string][]string{
		"model": layout.ModelNames, "optimizer": {"adamw", "muon"}, "schedule": {"cosine", "wsd"},
		"without": layout.PartNames(), "dtype": {"float32", "bfloat16"}, "fp8": {"off", "head", "all"},
		"graph": {"auto", "on", "off"}, "shard": {"off", "optimizer", "gradients", "parameters"},
		"recompute": {"off", "gelu", "block"}, "balance": {"auto", "measured", "rates"},
		"resume": {"auto", "must", "never"}, "tokens": {"bytes", "gpt2"},
	} {
		cli.Choices(fs, flag, values...)
	}
	o.json = func() string { return fs.Lookup("json").Value.String() }
	o.Given, o.known = fs.Changed, func() error { return cli.Known(fs) }
}

// takeModel makes the shape of the model, except its vocabulary, from the
// flags and from the usual values.
func (o *Options) takeModel() error {
	if err := o.known(); err != nil {
		return err
	}
	base, err := layout.Preset(o.model)
	if err != nil {
		return err
	}
	level, err := layout.ParseFP8(o.FP8)
	if err != nil {
		return err
	}
	mode, err := layout.ParseShard(o.shard)
	if err != nil {
		return err
	}
	recompute, err := layout.ParseRecompute(o.recompute)
	if err != nil {
		return err
	}
	if level != layout.FP8Off && o.DType == "float32" {
		return fmt.Errorf("--fp8 %s needs --dtype bfloat16, and this is float32", o.FP8)
	}
	alike := o.model
	if o.initFrom != "" {
		if base, alike, err = o.takeWeights(); err != nil {
			return err
		}
	}
	parts, err := o.partsOf(base)
	if err != nil {
		return err
	}
	usual := habits[alike]
	o.usual = alike
	if !o.Given("batch") {
		o.Batch = usual.batch
	}
	if err := o.takeOptimizer(parts, usual.lr, usual.beta2); err != nil {
		return err
	}
	for _, d := range []struct {
		flag  string
		value *int
		base  int
	}{
		{"layers", &o.layers, base.Layers}, {"heads", &o.heads, base.Heads}, {"channels", &o.channels, base.Channels},
		{"seq", &o.Seq, min(usual.seq, base.SeqMax)},
	} {
		if !o.Given(d.flag) {
			*d.value = d.base
		}
	}
	if !o.Given("log-every") {
		o.logEvery = max(1, o.steps/20)
	}
	if !o.Given("save-every") {
		o.saveEvery = max(1, o.steps/10)
	}
	// Sequences longer than GPT-2's add positions. Shorter ones leave the model its size.
	o.Cfg = layout.Config{Layers: o.layers, Heads: o.heads, Channels: o.channels, SeqMax: max(o.Seq, base.SeqMax),
		FP8: level, Shard: layout.Sharding{Mode: mode}, Recompute: recompute, Parts: parts}
	return nil
}

// Check refuses flags that do not fit together, and computes what Run needs. It runs
// before MPI starts, on every rank.
func (o *Options) Check(ranks int) error {
	if err := o.takeModel(); err != nil {
		return err
	}
	o.fixedGlobal = o.Given("global-batch")
	if !o.fixedGlobal {
		o.GlobalBatch = max(1, o.Batch) * ranks
	}
	if err := cmp.Or(o.checkNumbers(), o.checkWhole(), o.checkBalance(), o.checkParts(ranks)); err != nil {
		return err
	}
	switch {
	case o.channels%o.heads != 0:
		return fmt.Errorf("--heads %d does not divide %d channels", o.heads, o.channels)
	case o.tp*o.pp > 1 && o.GlobalBatch < o.replicas(ranks):
		return fmt.Errorf("--global-batch %d is less than the %d replicas of the model: each needs a sequence",
			o.GlobalBatch, o.replicas(ranks))
	case o.GlobalBatch < o.replicas(ranks):
		return fmt.Errorf("--global-batch %d is less than the %d ranks: each needs a sequence", o.GlobalBatch, ranks)
	case o.growBatch > 0 && o.growBatch < o.replicas(ranks):
		return fmt.Errorf("--grow-batch %d is less than the %d replicas of the model: each needs a sequence",
			o.growBatch, o.replicas(ranks))
	case o.growBatch > 0 && o.pp > 1:
		return fmt.Errorf("--grow-batch is for runs without --pp, whose steps are schedules of as many " +
			"micro-batches each")
	case (o.fixedGlobal || o.Batch > 0) && o.growBatch > o.GlobalBatch:
		return fmt.Errorf("--grow-batch %d is more than the %d sequences of --global-batch, up to which steps grow",
			o.growBatch, o.GlobalBatch)
	case o.warmup > o.steps:
		return fmt.Errorf("--warmup-steps %d is more than --steps %d", o.warmup, o.steps)
	case o.schedule == wsd && 2*o.warmup > o.steps:
		return fmt.Errorf("--warmup-steps %d is more than half of --steps %d, and --schedule wsd lowers the rate in "+
			"the second half", o.warmup, o.steps)
	case o.RequeueStatus > 255:
		return fmt.Errorf("--requeue-status %d: must be at most 255", o.RequeueStatus)
	}
	switch {
	case o.Given("bucket-mib") && o.bucketMiB < 1:
		return fmt.Errorf("--bucket-mib %d: must be at least 1", o.bucketMiB)
	case o.Given("bucket-mib") && o.Cfg.Shard.Mode != layout.ShardOff:
		return fmt.Errorf("--bucket-mib has no meaning with --shard %s", o.shard)
	}
	for _, flag := range []string{"save-every", "keep", "resume", "requeue-status"} {
		if !o.Given(flag) || o.Checkpoint != "" {
			continue
		}
		if *o.runDir == "" || *o.runDir == "off" {
			return fmt.Errorf("--%s needs --checkpoint, or a --run-dir to save in", flag)
		}
		o.Checkpoint = *o.runDir
	}
	if err := telemetry.CheckFolder(o.folder()); err != nil {
		return err
	}
	if err := o.checkData(); err != nil {
		return err
	}
	o.Cfg.Vocab, o.Cfg.Shard.Ranks = o.Tok.IDs(), o.replicas(ranks)
	if o.pp > 1 {
		o.Cfg.Stage.Stages = o.pp
	}
	if o.tp > 1 {
		o.Cfg.Tensor.Ranks = o.tp
	}
	o.takeRate()
	return o.Cfg.Validate()
}

// folder returns the configuration of the run's folder.
func (o *Options) folder() telemetry.FolderConfig {
	return telemetry.FolderConfig{Dir: *o.runDir, Default: o.Checkpoint, State: o.Checkpoint}
}

// maxNumber is the largest value of a flag. Products of two such numbers stay at or below 2^62.
const maxNumber = 1 << 31

// checkData finds the data and chooses the tokenizer. Token files of llm.c have GPT-2's tokens.
func (o *Options) checkData() error {
	var bins, valBins bool
	var err error
	if o.Tok, err = text.NewTokenizer(o.tokens); err != nil {
		return err
	}
	if o.Inputs, bins, err = InputsOf(o.Data); err != nil {
		return err
	}
	if len(o.valData) > 0 {
		if o.valInputs, valBins, err = InputsOf(o.valData); err != nil {
			return text.AboutVal(err)
		}
	}
	if bins || valBins {
		if o.tokens != "gpt2" && (o.Given("tokens") || o.weights != nil) {
			return fmt.Errorf("--tokens %s: token files (.bin) hold GPT-2's", o.tokens)
		}
		o.tokens = "gpt2"
	}
	if o.prompt == "" && len(o.Data) == 0 {
		o.prompt = "\nfunc ("
	}
	o.Tok, err = text.NewTokenizer(o.tokens)
	return err
}

// InputsOf finds data, and says whether it consists of llm.c's token files.
func InputsOf(patterns []string) ([]text.Place, bool, error) {
	inputs, err := text.Resolve(patterns)
	if err != nil {
		return nil, false, err
	}
	bins, err := text.BinInputs(inputs)
	return inputs, bins, err
}

// checkNumbers refuses each number that is out of its range.
func (o *Options) checkNumbers() error {
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"steps", o.steps, 1}, {"batch", o.Batch, 0}, {"global-batch", o.GlobalBatch, 1},
		{"grow-batch", o.growBatch, 0}, {"seq", o.Seq, 1},
		{"layers", o.layers, 1}, {"dp", o.dp, 0}, {"tp", o.tp, 1}, {"pp", o.pp, 1}, {"heads", o.heads, 1},
		{"channels", o.channels, 1}, {"log-every", o.logEvery, 1},
		{"warmup-steps", o.warmup, 0}, {"val-every", o.valEvery, 0}, {"val-batches", o.valBatches, 0},
		{"audit", o.audit, 0}, {"skip-bad-steps", o.skipBad, 0}, {"sample", o.sample, 0},
		{"save-every", o.saveEvery, 0}, {"keep", o.keep, 1}, {"requeue-status", o.RequeueStatus, 0},
	} {
		if n.value < n.min {
			return fmt.Errorf("--%s %d: must be at least %d", n.flag, n.value, n.min)
		}
		if n.value > maxNumber {
			return fmt.Errorf("--%s %d: must be at most %d", n.flag, n.value, maxNumber)
		}
	}
	for _, x := range []struct {
		flag          string
		value, lo, hi float64
		open          string // which bounds are not allowed themselves
	}{
		{"lr", o.lr, 0, math.MaxFloat32, "lo"}, {"embed-lr", o.embedLR, 0, math.MaxFloat32, ""},
		{"head-lr", o.headLR, 0, math.MaxFloat32, ""}, {"vector-lr", o.vectorLR, 0, math.MaxFloat32, ""},
		{"min-lr", o.minLR, 0, 1, ""}, {"weight-decay", o.weightDecay, 0, math.MaxFloat32, ""},
		{"beta1", o.beta1, 0, 1, "hi"}, {"beta2", o.beta2, 0, 1, "hi"}, {"clip", o.clip, 0, math.MaxFloat32, ""},
		{"temperature", o.temperature, 0, math.MaxFloat32, ""},
	} {
		ok := x.value >= x.lo && x.value <= x.hi // false for NaN
		switch {
		case x.open == "lo" && (!ok || x.value == x.lo):
			return fmt.Errorf("--%s %g: must be a number above %g", x.flag, x.value, x.lo)
		case x.open == "hi" && (!ok || x.value == x.hi):
			return fmt.Errorf("--%s %g: must be from %g to below %g", x.flag, x.value, x.lo, x.hi)
		case !ok && x.hi == 1:
			return fmt.Errorf("--%s %g: must be from %g to %g", x.flag, x.value, x.lo, x.hi)
		case !ok:
			return fmt.Errorf("--%s %g: must be a number of at least %g", x.flag, x.value, x.lo)
		}
	}
	return nil
}

// DefaultDType returns dtype, or the device's default if dtype is empty.
func DefaultDType(w *spmd.World, dtype string) string {
	switch {
	case dtype != "":
		return dtype
	case w.OnHost():
		return "float32"
	}
	return "bfloat16"
}

func (o *Options) trainConfig() trainer.Config {
	return trainer.Config{Model: o.Cfg, Adam: o.adam, Rate: o.rate, Batch: o.Batch, Seq: o.Seq,
		GlobalBatch: o.GlobalBatch, Steps: o.steps, ValBatches: o.valBatches, Half: o.DType == "bfloat16",
		Graph: o.graph, Weights: o.weights, BucketMiB: o.bucketMiB, SkipBad: o.skipBad}
}
