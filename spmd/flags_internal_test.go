package spmd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"lockstep/internal/launcher"
)

// What a line of the log quotes, from a file or another process, cannot control the
// terminal on which it is read.
func TestLogIsPlain(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log := (&Config{}).logger(launcher.Job{Size: 1}, f)
	const evil = "a\x1b[2J\u009bb\u202ec"
	log.Error().Str("field", evil).Err(errors.New(evil)).Strs("list", []string{evil}).Msg(evil + "\nnext")
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(string(b), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("the log holds %q", b)
	}
	if !strings.Contains(string(b), `a\x1b[2J\u009bb\u202ec`+"\nnext") {
		t.Errorf("the log holds %q, not the message", b)
	}
}
