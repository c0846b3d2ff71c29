package kernels

import (
	"slices"
	"testing"
)

// declare stands for NewKernel and its callers.
func declare(text string, names ...string) { Add(Source{Text: text, Names: names}) }

// The declaring package of a kernel is known, and equal sources are one program.
func TestDeclared(t *testing.T) {
	declare("a", "f")
	func() { declare("a", "f", "g<float>") }()
	declare("", "nothing")
	const here = "lockstep/internal/kernels"
	if got := Package(0); got != here {
		t.Errorf("this package is %q", got)
	}
	got := DeclaredBy(here)
	if len(got) != 1 || got[0].Text != "a" || !slices.Equal(got[0].Names, []string{"f", "g<float>"}) {
		t.Errorf("declared here: %+v", got)
	}
	if got := DeclaredBy("testing"); len(got) != 0 {
		t.Errorf("declared elsewhere: %+v", got)
	}
	got[0].Names[0] = "changed"
	if All()[0].Names[0] != "f" {
		t.Error("All gives away its own list")
	}
}
