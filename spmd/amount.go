package spmd

import "lockstep/internal/readable"

// Amount writes x and its unit for a line of the log, with three digits. A unit that is a symbol
// gets a prefix that suits x.
//
//	w.Log().Info().Str("residual", spmd.Amount(r, "")).Str("moved", spmd.Amount(rate, "B/s")).Msg("relaxed")
//
// is the line
//
//	INF relaxed residual=3.10e-05 moved="1.23 GB/s" rank=0
//
// Fields stand in the order of the call. A unit that is a word, such as "steps/s", has no prefix.
func Amount[N int | int64 | uint64 | float32 | float64](x N, unit string) string {
	return readable.Amount(float64(x), unit)
}
