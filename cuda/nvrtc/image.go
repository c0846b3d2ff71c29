package nvrtc

import (
	"bytes"
	"encoding/binary"
)

// Image is what Compile returns: code, and in front of it the names that name expressions have there, if there are any.
type Image []byte

// lowered begins an Image that has names.
const lowered = "lockstep names 1\n"

// withNames puts a table of names, two texts each, in front of code.
func withNames(names [][2]string, code []byte) Image {
	if len(names) == 0 {
		return code
	}
	b := binary.LittleEndian.AppendUint32([]byte(lowered), uint32(len(names)))
	for _, n := range names {
		for _, text := range n {
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(text))), text...)
		}
	}
	return append(b, code...)
}

// Code returns what cuModuleLoadData takes.
func (i Image) Code() []byte {
	code, _ := i.split("")
	return code
}

// Kernel returns the name that a kernel has in the code: for a name expression such as "scale<float>" the mangled one, for
// every other name that name.
func (i Image) Kernel(name string) string {
	_, found := i.split(name)
	if found == "" {
		return name
	}
	return found
}

// split returns the code, and the name that an expression has in it, "" where it has none. What is no table of names is code.
func (i Image) split(expression string) (code []byte, found string) {
	rest, ok := bytes.CutPrefix(i, []byte(lowered))
	if !ok || len(rest) < 4 {
		return i, ""
	}
	n := binary.LittleEndian.Uint32(rest)
	rest = rest[4:]
	next := func() (text string, ok bool) {
		if len(rest) < 4 {
			return "", false
		}
		n := uint64(binary.LittleEndian.Uint32(rest))
		if rest = rest[4:]; uint64(len(rest)) < n {
			return "", false
		}
		text, rest = string(rest[:n]), rest[n:]
		return text, true
	}
	for range n {
		from, _ := next()
		to, ok := next()
		if !ok {
			return i, ""
		}
		if from == expression {
			found = to
		}
	}
	return rest, found
}
