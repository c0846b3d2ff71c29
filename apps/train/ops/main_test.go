package ops

import (
	"testing"

	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

// The compiler accepts all kernels.
func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
