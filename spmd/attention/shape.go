package attention

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Shape is the shape of one attention. Each of Batch sequences has Tokens tokens; Heads heads of
// Size channels see it.
type Shape struct {
	Batch  int
	Tokens int
	Heads  int
	Size   int // channels of a head

	// Window, a multiple of 128, bounds how far back a query sees. The 128 queries from a multiple
	// of 128 on see so many keys before the first of them. 0 is no bound. cudnn has no windows.
	Window int
}

// A window is a multiple of windowStep.
const windowStep = 128

func (s Shape) String() string {
	text := fmt.Sprintf("%d sequences of %d tokens, %d heads of %d channels", s.Batch, s.Tokens, s.Heads, s.Size)
	if s.Window > 0 {
		text += fmt.Sprintf(", a window of %d", s.Window)
	}
	return text
}

func (s Shape) check(op string) error {
	if s.Batch < 1 || s.Tokens < 1 || s.Heads < 1 || s.Size < 1 || s.Window < 0 || s.Window%windowStep != 0 {
		return fmt.Errorf("%s: %s: a shape of %v", ccall.At(), op, s)
	}
	const most = 1<<31 - 1 // numbers of rows and elements of a row fit 32 bits
	rows, ok := elem.Product(s.Batch, s.Tokens, s.Heads)
	row, ok2 := elem.Product(3, s.Heads, s.Size)
	if !ok || !ok2 || max(rows, row) > most {
		return fmt.Errorf("%s: %s: a shape of %v is too large", ccall.At(), op, s)
	}
	return nil
}

// fitsMMA reports whether the kernels for tensor cores have heads of this size.
func (s Shape) fitsMMA() bool { return s.Size <= mmaMaxHead && s.Size%mmaHeadStep == 0 }

func (s Shape) dims() dims { return dims{s.Batch, s.Tokens, s.Heads, s.Size, s.Window} }
