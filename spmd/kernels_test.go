package spmd_test

import (
	"testing"

	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
