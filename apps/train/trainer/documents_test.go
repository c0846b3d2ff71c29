package trainer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
)

// The texts of a folder follow each other in a mixed order, with a separator behind each. Every
// window is full, whatever the texts' lengths.
//
// An epoch has each token once, except less than two windows at its ends. Other epochs have all of
// these but less than the last window.
func TestDocumentsArePacked(t *testing.T) {
	const seq, global, texts, epochs = 32, 4, 120, 300
	dir, rng := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	wants := map[string]bool{}
	// The first 60 have capitals, the last 60 small letters. Some are shorter than a window, some
	// longer than several.
	for i := range texts {
		x := make([]byte, 3+rng.IntN(3*seq))
		for k := range x {
			x[k] = "Aa"[i*2/texts] + byte(rng.IntN(26))
		}
		wants[string(x)] = true
		traintest.Write(t, dir, fmt.Sprintf("%d/%03d.txt", i*2/texts, i), string(x))
	}
	inputs, err := text.Resolve([]string{dir})
	traintest.NoError(t, err)
	alone := text.Group{Size: 1, Exchange: func(mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }}
	f, err := text.Open(alone, text.Options{Inputs: inputs, Tokens: text.Bytes{}, Cache: t.TempDir(), Threads: 1,
		Log: zerolog.Nop()})
	traintest.NoError(t, err)
	defer f.Close()

	tokens, changes, last := make([]int32, f.Len()), 0, false
	f.Read(tokens, 0)
	for rest := tokens; len(rest) > 0; {
		end := slices.Index(rest, text.Bytes{}.Separator())
		if end <= 0 {
			t.Fatalf("%d tokens at the end are no text with a separator behind it", len(rest))
		}
		x := string(text.Bytes{}.Decode(rest[:end]))
		if !wants[x] {
			t.Fatalf("%q is no text, or one that was there before", x)
		}
		delete(wants, x)
		if small := x[0] >= 'a'; small != last {
			last = small
			changes++
		}
		rest = rest[end+1:]
	}
	if len(wants) > 0 || changes < texts/4 { // half of them, by chance
		t.Errorf("%d texts are missing; %d times one follows another of the other folder, of %d",
			len(wants), changes, texts)
	}

	d, err := NewDataset(f, seq, global, 3)
	traintest.NoError(t, err)
	ever := make([]bool, d.Train.Len-1)
	in, target := make([]int32, seq), make([]int32, seq)
	n := d.windows()
	for epoch := range epochs {
		seen := make([]bool, len(ever))
		for i := range n {
			at := d.Start((epoch*n+i)/global, (epoch*n+i)%global)
			d.fill(in, target, at)
			if !slices.Equal(in, tokens[at:at+seq]) || !slices.Equal(target, tokens[at+1:at+seq+1]) {
				t.Fatalf("epoch %d: the window at %d has other tokens than those there", epoch, at)
			}
			for k := at; k < at+seq; k++ {
				if seen[k] {
					t.Fatalf("epoch %d: token %d a second time", epoch, k)
				}
				seen[k], ever[k] = true, true
			}
		}
		if left := len(ever) - n*seq; left >= 2*seq {
			t.Errorf("%d tokens of %d are in no window", left, len(ever))
		}
	}
	if i := slices.Index(ever, false); i >= 0 && i < len(ever)-seq {
		t.Errorf("token %d of %d is in no window of %d epochs", i, len(ever), epochs)
	}
}
