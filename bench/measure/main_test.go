package measure

import (
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) {
	spmdtest.Main(m, func() {
		if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--case") }) {
			Collectives()
			return
		}
		Calls()
	})
}

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
