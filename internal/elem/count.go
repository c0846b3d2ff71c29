package elem

import "slices"

// MostBytes is more than any memory has. It leaves room to round up.
const MostBytes = 1 << 56

// Product returns the product of sizes that a program gives, such as those of a shape. It is false
// if one is negative, or the product is above MostBytes. It is the rule for all lengths.
func Product(sizes ...int) (n int, ok bool) {
	if slices.Contains(sizes, 0) {
		return 0, slices.Min(sizes) == 0
	}
	n = 1
	for _, k := range sizes {
		if k < 0 || k > MostBytes/n {
			return 0, false
		}
		n *= k
	}
	return n, true
}

// Total is Product for the sum.
func Total(sizes ...int) (n int, ok bool) {
	for _, k := range sizes {
		if k < 0 || n > MostBytes-k {
			return n, false
		}
		n += k
	}
	return n, true
}
