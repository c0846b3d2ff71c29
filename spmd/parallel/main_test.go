package parallel_test

import (
	"testing"

	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }
