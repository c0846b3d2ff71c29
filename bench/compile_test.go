package main

import (
	"testing"

	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
