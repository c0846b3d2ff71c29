package measure

import (
	"fmt"
	"strconv"
	"strings"
)

// ByteSize is a flag's number of bytes, such as 8B, 64KiB, 1GiB or 4096.
type ByteSize int

// MostBytes keeps sums and products of sizes far from overflow.
const MostBytes = 1 << 40

var units = []struct {
	name  string
	bytes int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// Set reads a size.
func (b *ByteSize) Set(s string) error {
	number, unit := s, 1
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil || n < 1 || n > MostBytes/unit {
		return fmt.Errorf("want a number of bytes from 1 to 1024GiB, such as 8B, 64KiB, 16MiB or 1GiB")
	}
	*b = ByteSize(n * unit)
	return nil
}

// String returns it in the largest unit that leaves no remainder.
func (b *ByteSize) String() string { return SizeText(int(*b)) }

// Type returns its name in a usage text.
func (b *ByteSize) Type() string { return "bytes" }

// SizeText returns a number of bytes for people, as --from takes it.
func SizeText(bytes int) string {
	for _, u := range units {
		if bytes%u.bytes == 0 && bytes >= u.bytes {
			return strconv.Itoa(bytes/u.bytes) + u.name
		}
	}
	return strconv.Itoa(bytes) + "B"
}
