package cublas

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/internal/elem"
)

// Gemm describes the product
//
//	C = Alpha * op(A) * op(B) + Beta * C
//
// of row-major matrices: op(A) is (M, K), op(B) is (K, N), C is (M, N). With TransA the stored
// matrix is A' of (K, M), with TransB B' of (N, K). A stride is at least the width of the stored
// matrix. As in BLAS, C is not read if Beta is 0 (it may hold NaN). A and B are not read if Alpha
// or K is 0.
type Gemm struct {
	M, N, K        int
	TransA, TransB bool
	LdA, LdB, LdC  int       // from one row to the next, in elements
	AB, C          elem.Type // of A and B, and of C; if A, which AB then is, is Float8E5M2, B is Float8E4M3
	Alpha, Beta    float64   // rounded to float32 but for products in float64
	Epilogue       Epilogue  // for Lt alone
	// for Lt alone: so many products, of matrices that lie one behind the other; 0 is 1, and others
	// have no epilogue
	Count     int
	FastAccum bool // for Lt and 8-bit floats alone: sums in fewer bits, faster
}

// Epilogue is the work of a product on the way to C, with more operands.
type Epilogue uint8

// The epilogues. gelu is approximately the tanh form: results of 16 bits do not show the
// difference.
const (
	NoEpilogue Epilogue = iota
	Bias                // C has Bias added to every row
	GELU                // Aux receives the C without it, and C is gelu(Aux)
	BiasGELU            // both
	DGELU               // C is multiplied by gelu'(Aux)
)

func (e Epilogue) String() string {
	return [...]string{"", "Bias", "GELU", "Bias and GELU", "DGELU"}[e]
}

func (e Epilogue) bias() bool { return e == Bias || e == BiasGELU }

func (e Epilogue) aux() bool { return e >= GELU }

// Beside are the operands of a product beside A, B and C, of C's type but for the scales.
type Beside struct {
	Add  unsafe.Pointer // (M, N), rows LdC apart: Beta multiplies it in place of C; nil for C itself
	Bias unsafe.Pointer // of the epilogue, N elements
	Aux  unsafe.Pointer // of the epilogue, (M, N), rows LdC apart

	// for 8-bit floats alone: factors of A and B, a float32 in device memory each, aligned to 16
	// bytes; nil for 1
	ScaleA, ScaleB unsafe.Pointer
}

func (g *Gemm) String() string {
	a, b := "A", "B"
	if g.TransA {
		a = "A'"
	}
	if g.TransB {
		b = "B'"
	}
	with := ""
	if g.Epilogue != NoEpilogue {
		with = " with " + g.Epilogue.String()
	}
	if g.count() > 1 {
		with += fmt.Sprintf(", %d of them", g.Count)
	}
	return fmt.Sprintf("%v C(%d, %d) = %v %s %s over %d, strides %d, %d, %d%s", g.C, g.M, g.N, g.AB, a, b,
		g.K, g.LdC, g.LdA, g.LdB, with)
}

// The checks fail with the numbers in the message. They allocate nothing when all is well.

func (g *Gemm) check(c, a, b unsafe.Pointer) error {
	if g.M < 0 || g.N < 0 || g.K < 0 {
		return fmt.Errorf("cublas: Gemm: negative size: M %d, N %d, K %d", g.M, g.N, g.K)
	}
	if g.Count < 0 || int(int32(g.Count)) != g.Count || g.Count > 1 && g.Epilogue != NoEpilogue {
		return fmt.Errorf("cublas: Gemm: %d products, with epilogue %q", g.Count, g.Epilogue)
	}
	widthA, widthB := g.K, g.N
	if g.TransA {
		widthA = g.M
	}
	if g.TransB {
		widthB = g.K
	}
	if g.LdA < widthA || g.LdB < widthB || g.LdC < g.N {
		return fmt.Errorf("cublas: Gemm: stride below the width: A %d of %d, B %d of %d, C %d of %d",
			g.LdA, widthA, g.LdB, widthB, g.LdC, g.N)
	}
	if g.empty() {
		return nil
	}
	if c == nil || !g.scales() && (a == nil || b == nil) {
		return errors.New("cublas: Gemm: nil address of a matrix that is not empty")
	}
	return nil
}

// count returns the number of products.
func (g *Gemm) count() int { return max(1, g.Count) }

// empty reports whether there is nothing to compute.
func (g *Gemm) empty() bool { return g.M == 0 || g.N == 0 }

// scales reports whether the product vanishes, and only C = Beta C is left. The libraries are not
// asked: some refuse K = 0, and 0 * A is not 0 if A holds infinities.
func (g *Gemm) scales() bool { return g.K == 0 || g.Alpha == 0 }

func supported(ab, c elem.Type) bool {
	return ab == c && (ab == elem.Float32 || ab == elem.Float64 || ab.Half()) || ab.Half() && c == elem.Float32 ||
		ab.Eight() && c == elem.BFloat16
}

// typeB returns the type of B beside an A of a type.
func typeB(a elem.Type) elem.Type {
	if a == elem.Float8E5M2 {
		return elem.Float8E4M3
	}
	return a
}
