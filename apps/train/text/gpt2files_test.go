package text

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"lockstep/internal/testkit"
)

// The files of GPT-2's tokens are those that OpenAI published. Source of the sums: tiktoken,
// tiktoken_ext/openai_public.py, of encoder.json and vocab.bpe.
func TestTokenizerFiles(t *testing.T) {
	vocab, merges, err := NewGPT2().Files()
	testkit.Must(t, err)
	for _, f := range []struct {
		name string
		text []byte
		want string
	}{
		{"vocab.json", vocab, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"},
		{"merges.txt", merges, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"},
	} {
		if sum := sha256.Sum256(f.text); hex.EncodeToString(sum[:]) != f.want {
			t.Errorf("%s: %d bytes with SHA-256 %x, want %s", f.name, len(f.text), sum, f.want)
		}
	}
}
