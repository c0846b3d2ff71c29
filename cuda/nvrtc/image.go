package nvrtc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
)

// Image is the result of Compile: code, and in front of it the names that name expressions have
// there, if there are any.
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

// Code returns the argument of cuModuleLoadData.
func (i Image) Code() []byte {
	code, _ := i.split("")
	return code
}

// Kernel returns the name that a kernel has in the code: the mangled one for a name expression such
// as "scale<float>", and otherwise the same name.
func (i Image) Kernel(name string) string {
	_, found := i.split(name)
	if found == "" {
		return name
	}
	return found
}

// split returns the code, and the name that an expression has in it, or "". Bytes without a table
// of names are code.
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

// ParamsEnds returns the end of each kernel's last parameter, in bytes, by the names that kernels
// have in the code. It is empty if the code does not say, as PTX does not. It reads the attribute
// EIATTR_CBANK_PARAM_SIZE of the sections .nv.info, as `cuobjdump -elf` names it.
func (i Image) ParamsEnds() map[string]int {
	const versionAt = 20 // in the header: a cubin has CUDA's version there, and Go wants ELF's
	code := bytes.Clone(i.Code())
	if len(code) < versionAt+4 {
		return nil
	}
	binary.LittleEndian.PutUint32(code[versionAt:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return nil
	}
	ends := map[string]int{}
	for _, section := range f.Sections {
		kernel, of := strings.CutPrefix(section.Name, ".nv.info.")
		if !of {
			continue
		}
		if info, err := section.Data(); err == nil {
			if end, known := paramsEnd(info); known {
				ends[kernel] = end
			}
		}
	}
	return ends
}

// paramsEnd finds the size of the parameters among the attributes of a kernel.
func paramsEnd(info []byte) (end int, known bool) {
	const (
		formatSized    = 4 // a size, and so many bytes
		paramBytes     = 0x19
		attributeBytes = 4
	)
	for len(info) >= attributeBytes {
		format, attribute, n := info[0], info[1], int(binary.LittleEndian.Uint16(info[2:]))
		info = info[attributeBytes:]
		switch {
		case attribute == paramBytes:
			return n, true
		case format == formatSized:
			info = info[min(n, len(info)):]
		}
	}
	return 0, false
}
