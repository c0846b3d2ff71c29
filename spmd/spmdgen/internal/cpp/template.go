package cpp

import (
	"fmt"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// More is where the parameters of a template begin, which may be more in the end, and Given where
// the arguments for them do.
const More, Given = "\x01", "\x02"

// Instances prints something for each of lists of types. If the texts differ only where each has a
// type of its own, they are one template over T1, T2 and so on.
func (u *Unit) Instances(args [][]types.Type, print func(i int) string) (texts []string, one bool) {
	u.types = nil
	if len(args) > 1 {
		u.types = slices.Concat(args...)
	}
	var names [][]string
	for i, list := range args {
		texts = append(texts, print(i))
		var of []string
		for _, t := range list {
			of = append(of, u.CType(token.NoPos, t))
		}
		names = append(names, of)
	}
	u.types = nil
	more, given := "", ""
	if len(texts) > 1 {
		if text, ok := template(texts, names); ok {
			texts, one = []string{text}, true
			for j := range args[0] {
				more += fmt.Sprintf("typename T%d, ", j+1)
				given += fmt.Sprintf("T%d, ", j+1)
			}
		}
	}
	for i := range texts {
		texts[i] = strings.NewReplacer(More, more, Given, given).Replace(texts[i])
	}
	return texts, one
}

// several reports whether a type is one of those that a type parameter is.
func (u *Unit) several(t types.Type) bool {
	return slices.ContainsFunc(u.types, func(o types.Type) bool { return types.Identical(o, t) })
}

// words splits a text into names, types with arguments of their own, and all else.
var words = regexp.MustCompile(`spmd::complex<\w+>|\w+|\W`)

// template returns the one text that is each of texts if T1, T2 and so on are its types.
func template(texts []string, types [][]string) (string, bool) {
	var split [][]string
	for _, text := range texts {
		split = append(split, words.FindAllString(text, -1))
		if len(split[0]) != len(split[len(split)-1]) {
			return "", false
		}
	}
	for at, word := range split[0] {
		if !slices.ContainsFunc(split, func(s []string) bool { return s[at] != word }) {
			continue
		}
		parameter := ""
		for j := range types[0] {
			own := true
			for i, s := range split {
				own = own && s[at] == types[i][j]
			}
			if own {
				parameter = fmt.Sprintf("T%d", j+1)
			}
		}
		if parameter == "" {
			return "", false
		}
		split[0][at] = parameter
	}
	return strings.Join(split[0], ""), true
}
