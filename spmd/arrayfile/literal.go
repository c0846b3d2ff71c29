package arrayfile

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// literal reads the values of a Python literal: strings, True and False, numbers, tuples, lists and
// dictionaries. NumPy's headers are such.
type literal struct{ rest string }

var token = regexp.MustCompile(`^(?:'[^'\\\n]*'|"[^"\\\n]*"|[0-9]+L?|True|False|[][(){}:,])`)

// next returns the next token; "" at the end, or before something else.
func (l *literal) next() string {
	l.rest = strings.TrimLeft(l.rest, " \t\r\n\f")
	t := token.FindString(l.rest)
	l.rest = l.rest[len(t):]
	return t
}

// take takes the next token if it is t.
func (l *literal) take(t string) bool {
	before := l.rest
	if l.next() == t {
		return true
	}
	l.rest = before
	return false
}

// value returns the next value: a string, a bool, an int, a slice of them, or a map.
func (l *literal) value() (any, error) {
	switch t := l.next(); {
	case t == "True" || t == "False":
		return t == "True", nil
	case t == "(":
		list, comma, err := l.list(")")
		if err == nil && len(list) == 1 && !comma {
			return list[0], nil // in brackets
		}
		return list, err
	case t == "[":
		list, _, err := l.list("]")
		return list, err
	case t == "{":
		m := map[string]any{}
		for !l.take("}") {
			key, err := l.value()
			name, ok := key.(string)
			if err != nil || !ok || !l.take(":") {
				return nil, fmt.Errorf("no name of a value before %.20q", l.rest)
			}
			if m[name], err = l.value(); err != nil {
				return nil, err
			}
			if !l.take(",") && !strings.HasPrefix(strings.TrimSpace(l.rest), "}") {
				return nil, fmt.Errorf("no comma before %.20q", l.rest)
			}
		}
		return m, nil
	case t != "" && strings.Contains(`'"`, t[:1]):
		return t[1 : len(t)-1], nil
	case t != "":
		return strconv.Atoi(strings.TrimSuffix(t, "L"))
	}
	return nil, fmt.Errorf("no value at %.20q", l.rest)
}

// list returns the values up to a bracket, and whether a comma is behind the last.
func (l *literal) list(end string) (list []any, comma bool, err error) {
	list, comma = []any{}, true
	for !l.take(end) {
		v, err := l.value()
		if err != nil || !comma {
			return nil, false, fmt.Errorf("no value or comma before %.20q", l.rest)
		}
		list, comma = append(list, v), l.take(",")
	}
	return list, comma, nil
}
