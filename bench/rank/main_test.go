package rank

import (
	"testing"

	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, Main) }

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
