package readable

import (
	"slices"
	"strconv"
	"strings"
)

// Ranges returns numbers in ascending order, with a separator such as ", ":
// "0-2, 5". It sorts numbers.
func Ranges(numbers []int, separator string) string {
	slices.Sort(numbers)
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := strconv.Itoa(numbers[i])
		if j > i {
			part += "-" + strconv.Itoa(numbers[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, separator)
}

// Ranks returns "rank 3", "ranks 0-2, 5" or "no rank".
func Ranks(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "no rank"
	case 1:
		return "rank " + strconv.Itoa(ranks[0])
	default:
		return "ranks " + Ranges(slices.Clone(ranks), ", ")
	}
}

// Span reads one part of a list, such as "3" or "8-11". ok is false unless part is a number from 0
// on, or two of them in order.
func Span(part string) (lo, hi int, ok bool) {
	from, to, isRange := strings.Cut(part, "-")
	lo, err := strconv.Atoi(from)
	hi = lo
	if err == nil && isRange {
		hi, err = strconv.Atoi(to)
	}
	return lo, hi, err == nil && lo >= 0 && hi >= lo
}
