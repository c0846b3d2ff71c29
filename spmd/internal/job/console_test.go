package job

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"lockstep/internal/testkit"
)

// A line for people has its fields in the order of the call, the error first and the rank last.
// What might harm a terminal is quoted.
func TestConsole(t *testing.T) {
	var out bytes.Buffer
	none, err := os.Open(os.DevNull) // no terminal
	testkit.Must(t, err)
	defer none.Close()
	log := zerolog.New(newConsole(&out, none)).With().Timestamp().Int("rank", 3).Logger()
	log.Info().Int("steps", 12345678).Float64("residual", 3.14159e-5).Str("gb", "a b").Float32("a", 0.5).
		Dict("ms", zerolog.Dict().Int("b", 1).Str("all", "\x1b")).Floats64("each", []float64{1.25, 2}).
		Err(os.ErrNotExist).Int("last", 1).Msg("relaxed \x1b[31m")
	_, got, _ := strings.Cut(out.String(), " ")
	const want = `INF relaxed \x1b[31m error="file does not exist" steps=12345678 residual=0.0000314159 gb="a b" ` +
		`a=0.5 ms={"all":"\\x1b","b":1} each=[1.25,2] last=1 rank=3` + "\n"
	if got != want {
		t.Errorf("%q, want\n%q", got, want)
	}
}
