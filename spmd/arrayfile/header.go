package arrayfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd"
)

// Info is the contents of a .npy file's header.
type Info struct {
	Shape []int
	Type  string // as NumPy writes it, such as "<f4"
	data  int    // where the elements begin
}

const magic = "\x93NUMPY"

// mostDims are the dimensions that every NumPy takes.
const mostDims = 32

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
	size := int(unsafe.Sizeof(*new(T)))
	if _, ok := elem.Product(append(slices.Clone(shape), size)...); !ok || len(shape) > mostDims {
		return nil, fmt.Errorf("an array of the shape %v", shape)
	}
	sizes := ""
	for _, n := range shape {
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

// Stat reads the header of a .npy file. It refuses other files, arrays in columns, and a file that
// is shorter than its array. It also refuses records, and Python's objects.
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
	version, length, wide := head[len(magic)], uint32(0), make([]byte, 4)
	if version == 1 {
		wide = wide[:2]
	}
	if _, err = io.ReadFull(f, wide); err == nil {
		length = binary.LittleEndian.Uint32(append(wide, 0, 0)[:4])
	}
	const most = 1 << 20 // of a header, which people may read
	text := make([]byte, min(length, most))
	if _, err2 := io.ReadFull(f, text); err != nil || err2 != nil || length > most || version < 1 || version > 3 {
		return info, fmt.Errorf("%s: its header of version %d and %d bytes is not complete, or not known", name,
			version, length)
	}
	info.data = len(head) + len(wide) + len(text)
	columns, err := info.parse(string(text))
	size, known := sizeOf(info.Type)
	total, fits := elem.Product(append(slices.Clone(info.Shape), size)...)
	switch {
	case err != nil:
		return info, fmt.Errorf("%s: its header is %q: %w", name, bytes.TrimSpace(text), err)
	case columns:
		return info, fmt.Errorf("%s is in the order of columns (fortran_order): numpy.ascontiguousarray makes rows",
			name)
	case !known:
		return info, fmt.Errorf("%s has elements of type %s, which are no numbers or texts", name, info.Type)
	case !fits:
		return info, fmt.Errorf("%s: its shape is %v", name, info.Shape)
	}
	i, err := f.Stat()
	if err == nil && i.Size()-int64(info.data) < int64(total) {
		err = fmt.Errorf("%s has %d bytes of elements, but its shape %v of %s needs %d", name,
			i.Size()-int64(info.data), info.Shape, info.Type, total)
	}
	return info, err
}

// parse reads the text of a header, a dictionary in Python. columns says that the array is stored
// column by column, and that this differs from row by row.
func (i *Info) parse(text string) (columns bool, err error) {
	l := &literal{text}
	v, err := l.value()
	if err != nil {
		return false, err
	}
	m, _ := v.(map[string]any)
	fortran, ok := m["fortran_order"].(bool)
	shape, isTuple := m["shape"].([]any)
	if i.Type, _ = m["descr"].(string); m["descr"] == nil || !ok || !isTuple || len(m) != 3 || l.next()+l.rest != "" {
		return false, errors.New("it has descr, fortran_order and shape")
	}
	if i.Type == "" {
		i.Type = fmt.Sprint(m["descr"])
	}
	i.Shape = make([]int, len(shape))
	long := 0
	for k, v := range shape {
		if i.Shape[k], ok = v.(int); !ok {
			return false, fmt.Errorf("%v is no length", v)
		}
		if i.Shape[k] > 1 {
			long++
		}
	}
	return fortran && long > 1 && !slices.Contains(i.Shape, 0), nil
}

// typeText is a type as NumPy writes it: its order of bytes, its kind, its size, and of times the
// unit.
var typeText = regexp.MustCompile(`^[<>|=]?([biufcSaVmMU])([0-9]{1,9})(?:\[[0-9]*[a-zA-Z]+\])?$`)

// sizeOf returns the bytes of an element of a type.
func sizeOf(descr string) (bytes int, known bool) {
	m := typeText.FindStringSubmatch(descr)
	if m == nil {
		return 0, false
	}
	bytes, _ = strconv.Atoi(m[2])
	if m[1] == "U" {
		bytes *= 4 // a character
	}
	return bytes, true
}
