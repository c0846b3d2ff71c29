package readable

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Letters are those of ASCII, and its digits.
const Letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// Text returns s with every character that could control a terminal, or change the order of
// others, written as Go writes it, such as \x1b. Newlines and tabs stay. Bytes that are not UTF-8
// become U+FFFD.
func Text(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || !shown(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if shown(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// Line is Text for one line: newlines and tabs are also written as Go writes them.
func Line(s string) string {
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Text(s))
}

// JSON returns a valid JSON text with every such character escaped. Its meaning does not change,
// except for bytes that are not UTF-8.
func JSON(text []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case shown(r):
			b.WriteRune(r)
		case r == '\r': // between values: inside of them it is escaped already
			b.WriteByte(' ')
		case r > 0xffff:
			r -= 0x10000 // as a surrogate pair
			for _, half := range []rune{0xd800 + r>>10, 0xdc00 + r&0x3ff} {
				b.WriteString(`\u` + strconv.FormatInt(int64(half), 16))
			}
		default:
			hex := strconv.FormatInt(int64(r), 16)
			b.WriteString(`\u` + "0000"[len(hex):] + hex)
		}
	}
	return b.Bytes()
}

func shown(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }
