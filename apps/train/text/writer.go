package text

import (
	"cmp"
	"context"
	"math"
	rand "math/rand/v2"
	"slices"
)

// Decoder is a model that continues one sequence.
type Decoder interface {
	// Next appends tokens, which must fit, and returns the logits of the next token. They stay
	// until the next call. It blocks.
	Next(tokens []int32) ([]float32, error)
	// Len returns the number of tokens.
	Len() int
	// Reset removes all tokens.
	Reset()
}

// Writer continues a text.
type Writer struct {
	Decoder
	tok         Tokenizer
	seq         int     // most tokens that the decoder looks at
	temperature float64 // 0 takes the likeliest token
	topK        int     // how many of the likeliest tokens are drawn from; 0 is all
	rng         *rand.Rand
	Within      bool    // the prompt comes from the middle of a document, without a separator before it
	Ends        bool    // the text ends with the document; else it has its length, without a separator
	IDs         []int32 // the text so far, from the separator that begins it on, if one does
}

// NewWriter returns a writer that draws by seed; temperature and topK are as in Writer.
func NewWriter(d Decoder, tok Tokenizer, seq int, temperature float64, topK int, seed uint64) *Writer {
	return &Writer{Decoder: d, tok: tok, seq: seq, temperature: temperature, topK: topK,
		rng: rand.New(rand.NewPCG(seed, 0x73616d706c65))}
}

// Write writes up to n tokens and passes the text of each to tell. They follow the beginning of a
// document and the prompt, or the prompt alone if Within is set, which must then have a token. Each
// is drawn from softmax(logits/temperature). It blocks.
func (t *Writer) Write(ctx context.Context, prompt string, n int, tell func(text []byte) error) error {
	ids, err := TokensOf(t.tok, prompt)
	if err != nil {
		return err
	}
	t.IDs = t.IDs[:0]
	if !t.Within {
		t.IDs = append(t.IDs, t.tok.Separator())
	}
	t.IDs = append(t.IDs, ids...)
	t.Reset()
	fresh := len(t.IDs) // tokens that the decoder has not seen
	for range n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if t.Len()+fresh > t.seq {
			// There are no more positions, so it goes on from the later half of the text.
			t.Reset()
			fresh = min(len(t.IDs), max(1, t.seq/2))
		}
		l, err := t.Next(t.IDs[len(t.IDs)-fresh:])
		if err != nil {
			return err
		}
		if !t.Ends {
			l[t.tok.Separator()] = float32(math.Inf(-1))
		}
		keepTop(l, t.topK)
		id := int32(draw(l, t.temperature, t.rng.Float64()))
		if t.Ends && id == t.tok.Separator() {
			return nil
		}
		t.IDs, fresh = append(t.IDs, id), 1
		if err := tell(t.tok.Decode([]int32{id})); err != nil {
			return err
		}
	}
	return nil
}

// keepTop makes all but the k largest logits impossible. The first of equal ones
// counts. 0 keeps all.
func keepTop(logits []float32, k int) {
	if k <= 0 || k >= len(logits) {
		return
	}
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(logits[j], logits[i]) })
	for _, i := range order[k:] {
		logits[i] = float32(math.Inf(-1))
	}
}

// draw returns i with probability softmax(logits/temperature)[i], for u uniform in [0, 1). At
// temperature 0 it returns the i of the largest logit.
func draw(logits []float32, temperature, u float64) int {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	if temperature == 0 {
		return best
	}
	weight := func(x float32) float64 { return math.Exp(float64(x-logits[best]) / temperature) }
	sum := 0.0
	for _, x := range logits {
		sum += weight(x)
	}
	u *= sum
	for i, x := range logits {
		if u -= weight(x); u < 0 {
			return i
		}
	}
	return best // rounding has left a crumb
}
