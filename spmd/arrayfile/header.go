package arrayfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unsafe"

	"lockstep/spmd"
)

// Info is the contents of a .npy file's header.
type Info struct {
	Shape []int
	Type  string // as NumPy writes it, such as "<f4"
	data  int    // where the elements begin
}

const magic = "\x93NUMPY"

// descr is NumPy's name of a type; false if NumPy lacks the type.
func descr[T spmd.Elem]() (string, bool) {
	kind, order := "", "<"
	switch any(*new(T)).(type) {
	case int8, int32, int64:
		kind = "i"
	case uint8, uint32, uint64:
		kind = "u"
	case spmd.F16, float32, float64:
		kind = "f"
	case complex64, complex128:
		kind = "c"
	default:
		return "", false
	}
	size := int(unsafe.Sizeof(*new(T)))
	if size == 1 {
		order = "|"
	}
	return order + kind + strconv.Itoa(size), true
}

func header[T spmd.Elem](shape []int) ([]byte, error) {
	of, ok := descr[T]()
	if !ok {
		return nil, fmt.Errorf("NumPy has no type like %T", *new(T))
	}
	sizes := ""
	for _, n := range shape {
		if n < 0 {
			return nil, fmt.Errorf("an array of the shape %v", shape)
		}
		sizes += strconv.Itoa(n) + ", "
	}
	if len(shape) > 1 {
		sizes = strings.TrimSuffix(sizes, ", ")
	} else {
		sizes = strings.TrimSuffix(sizes, " ")
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", of, sizes)
	const before, align = len(magic) + 4, 64
	text += strings.Repeat(" ", (align-(before+len(text)+1)%align)%align) + "\n"
	var b bytes.Buffer
	b.WriteString(magic + "\x01\x00")
	_ = binary.Write(&b, binary.LittleEndian, uint16(len(text)))
	b.WriteString(text)
	return b.Bytes(), nil
}

var fields = regexp.MustCompile(
	`^\{'descr': '([^']*)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\),? *\} *\n?$`)

// Stat reads the header of a .npy file. It refuses other files, arrays in columns, and a file that
// is shorter than its array.
func Stat(name string) (info Info, err error) {
	f, err := os.Open(name)
	if err != nil {
		return info, err
	}
	defer f.Close()
	head := make([]byte, len(magic)+2)
	if _, err := io.ReadFull(f, head); err != nil || string(head[:len(magic)]) != magic {
		return info, fmt.Errorf("%s is no .npy file", name)
	}
	length, wide := uint32(0), make([]byte, 4)
	if head[len(magic)] == 1 {
		wide = wide[:2]
	}
	if _, err = io.ReadFull(f, wide); err == nil {
		length = binary.LittleEndian.Uint32(append(wide, 0, 0)[:4])
	}
	const most = 1 << 16 // of a header, which people may read
	text := make([]byte, min(length, most))
	if _, err2 := io.ReadFull(f, text); err != nil || err2 != nil || head[len(magic)] > 3 {
		return info, fmt.Errorf("%s: its header of version %d is not complete, or not known", name, head[len(magic)])
	}
	m := fields.FindStringSubmatch(string(text))
	if m == nil {
		return info, fmt.Errorf("%s: its header is %q", name, bytes.TrimSpace(text))
	}
	if info.Type = m[1]; m[2] == "True" {
		return info, fmt.Errorf("%s is in the order of columns (fortran_order): numpy.ascontiguousarray makes rows",
			name)
	}
	info.data, info.Shape = len(head)+len(wide)+len(text), []int{}
	total, size := uint64(1), sizeOf(info.Type)
	for _, word := range strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(word)
		hi, lo := bits.Mul64(total, uint64(n))
		if total = lo; err != nil || n < 0 || hi != 0 || lo > 1<<56 {
			return info, fmt.Errorf("%s: its shape is (%s)", name, m[3])
		}
		info.Shape = append(info.Shape, n)
	}
	i, err := f.Stat()
	if err == nil && i.Size()-int64(info.data) < int64(total)*int64(size) {
		err = fmt.Errorf("%s has %d bytes of elements, but its shape (%s) of %s needs %d", name,
			i.Size()-int64(info.data), m[3], info.Type, int64(total)*int64(size))
	}
	return info, err
}

// sizeOf returns the size of a type that NumPy writes like "<f4".
func sizeOf(descr string) int {
	n, err := strconv.Atoi(strings.TrimLeft(descr, "<>|=iufcbOSUV"))
	if err != nil {
		return 1
	}
	return n
}
