// Package readable writes what people read: amounts with their units, lists of ranks, and text of
// unknown origin, which might control a terminal.
package readable

import (
	"math"
	"strconv"
	"strings"
)

// ThreeDigits returns x with three digits, or all of a longer whole part: 0.00123, 1.23, 12346,
// 3.10e-05.
func ThreeDigits(x float64) string {
	s := strconv.FormatFloat(x, 'e', 2, 64)
	_, power, ok := strings.Cut(s, "e")
	if !ok || x == 0 { // no number, or infinite
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	if e, _ := strconv.Atoi(power); e >= -4 && e < 9 {
		return strconv.FormatFloat(x, 'f', max(2-e, 0), 64)
	}
	return s
}

// prefixes are the prefixes of powers of 1,000, from 1e-9 on.
var prefixes = [...]string{"n", "u", "m", "", "k", "M", "G", "T", "P", "E"}

// Amount returns x of a unit with three digits: 1.23 GB/s, 45.6 ms, 475233 tokens/s, 5.00 %. A
// unit that is a symbol gets a suitable prefix. A unit that is a word gets none, nor do
// seconds above one.
func Amount(x float64, unit string) string {
	symbol, _, _ := strings.Cut(unit, "/")
	word := symbol == "%" || len(symbol) > 2 && symbol != strings.ToUpper(symbol)
	switch {
	case unit == "":
		return ThreeDigits(x)
	case symbol == "B" && x == math.Trunc(x) && math.Abs(x) < 1000:
		return strconv.FormatFloat(x, 'f', 0, 64) + " " + unit
	case x == 0 || math.IsNaN(x) || math.IsInf(x, 0) || word:
		return ThreeDigits(x) + " " + unit
	}
	at, most := 3, len(prefixes)-1
	if symbol == "s" {
		most = 3
	}
	least := 0
	if symbol == "B" {
		least = 3
	}
	for ; at < most && math.Abs(x) >= 999.5; at++ {
		x /= 1000
	}
	for ; at > least && math.Abs(x) < 0.9995; at-- {
		x *= 1000
	}
	return ThreeDigits(x) + " " + prefixes[at] + unit
}
