package control

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"reflect"
)

// Values of Go go between ranks, which run the same program and so have the same types. A message
// has the name of the type, and then only the contents. Unlike encoding/gob this leaves out nothing
// that a field holds: no pointer to 0, no -0, no empty slice. A type that encodes itself for gob
// does so here, too. The type behind an interface is registered by gob.Register.

// A message begins with a byte that says that a value follows, or why there is none.
const (
	isValue = iota
	isError
)

// deepest is how many pointers, slices, maps and structs of a value may lie in each other. A deeper
// value has a circle.
const deepest = 10_000

// Encode returns the message for what v points to. If it cannot be sent, the message says why.
func Encode(v any) []byte {
	at := reflect.ValueOf(v).Elem()
	e := encoder{b: []byte{isValue}}
	e.text(at.Type().String())
	if err := attempt(func() error { return e.value(at) }); err != nil {
		return append([]byte{isError}, err.Error()...)
	}
	return e.b
}

// Decode sets what v points to, a zero value, to the contents of a rank's message.
func Decode(message []byte, rank int, v any) error {
	if message[0] == isError {
		return fmt.Errorf("rank %d: %s", rank, message[1:])
	}
	d := decoder{message[1:]}
	err := attempt(func() error {
		at := reflect.ValueOf(v).Elem()
		if has, want := d.text(), at.Type().String(); has != want {
			return fmt.Errorf("it is of type %s, and %s is wanted", has, want)
		}
		return d.value(at)
	})
	if err != nil {
		return fmt.Errorf("of rank %d's value: %w", rank, err)
	}
	return nil
}

// attempt turns a panic into an error, such as a panic of a type's own methods.
func attempt(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	return fn()
}

// self returns how values of a type encode themselves, or nil.
func self(v reflect.Value) (encode func() ([]byte, error), decode func([]byte) error) {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		return nil, nil
	}
	if !v.CanAddr() { // the methods may be those of the pointer
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		v = p.Elem()
	}
	own := v.Addr().Interface()
	if in, ok := own.(gob.GobDecoder); ok {
		if out, ok := own.(gob.GobEncoder); ok {
			return out.GobEncode, in.GobDecode
		}
	}
	if in, ok := own.(encoding.BinaryUnmarshaler); ok {
		if out, ok := own.(encoding.BinaryMarshaler); ok {
			return out.MarshalBinary, in.UnmarshalBinary
		}
	}
	return nil, nil
}

// anyField reports whether a struct has a field that is sent, or has no fields.
func anyField(t reflect.Type) bool {
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			return true
		}
	}
	return t.NumField() == 0
}

type encoder struct {
	b     []byte
	depth int
}

func (e *encoder) number(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) text(s string) {
	e.number(uint64(len(s)))
	e.b = append(e.b, s...)
}

// some writes how many elements follow, or that there is nothing.
func (e *encoder) some(v reflect.Value, n int) bool {
	if v.IsNil() {
		e.number(0)
		return false
	}
	e.number(uint64(n) + 1)
	return true
}

func (e *encoder) float(f float64) { e.b = binary.LittleEndian.AppendUint64(e.b, math.Float64bits(f)) }

func (e *encoder) value(v reflect.Value) (err error) {
	if e.depth++; e.depth > deepest {
		return errors.New("a value that contains itself cannot be sent")
	}
	defer func() { e.depth-- }()
	if encode, _ := self(v); encode != nil {
		b, err := encode()
		e.text(string(b))
		return err
	}
	switch t := v.Type(); v.Kind() {
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		e.number(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.b = binary.AppendVarint(e.b, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.number(v.Uint())
	case reflect.Float32, reflect.Float64:
		e.float(v.Float())
	case reflect.Complex64, reflect.Complex128:
		e.float(real(v.Complex()))
		e.float(imag(v.Complex()))
	case reflect.String:
		e.text(v.String())
	case reflect.Slice:
		if !e.some(v, v.Len()) {
			return nil
		}
		if t.Elem().Kind() == reflect.Uint8 {
			e.b = append(e.b, v.Bytes()...)
			return nil
		}
		fallthrough
	case reflect.Array:
		for i := 0; i < v.Len() && err == nil; i++ {
			err = e.value(v.Index(i))
		}
	case reflect.Map:
		if e.some(v, v.Len()) {
			for entry := v.MapRange(); entry.Next() && err == nil; {
				if err = e.value(entry.Key()); err == nil {
					err = e.value(entry.Value())
				}
			}
		}
	case reflect.Pointer:
		if e.some(v, 0) {
			err = e.value(v.Elem())
		}
	case reflect.Interface:
		err = e.held(v)
	case reflect.Struct:
		if !anyField(t) {
			return fmt.Errorf("a value of type %v cannot be sent: none of its fields is exported", t)
		}
		for i := 0; i < t.NumField() && err == nil; i++ {
			if t.Field(i).IsExported() {
				err = e.value(v.Field(i))
			}
		}
	case reflect.Func, reflect.Chan:
		if !v.IsNil() {
			err = fmt.Errorf("a value of type %v cannot be sent", t)
		}
	default:
		err = fmt.Errorf("a value of type %v cannot be sent", t)
	}
	return err
}

// held encodes the contents of an interface: a zero value of its type as gob has it, which knows
// the type by its name, and the value.
func (e *encoder) held(v reflect.Value) error {
	if !e.some(v, 0) {
		return nil
	}
	zero := reflect.Zero(v.Elem().Type())
	if zero.Kind() == reflect.Pointer {
		zero = reflect.New(zero.Type().Elem())
	}
	named := zero.Interface()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&named); err != nil {
		return err
	}
	e.text(b.String())
	return e.value(v.Elem())
}

type decoder struct{ b []byte }

var errShort = errors.New("the message is too short")

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		panic(errShort)
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) number() uint64 {
	n, length := binary.Uvarint(d.b)
	d.take(uint64(max(length, 1)))
	return n
}

func (d *decoder) signed() int64 {
	n, length := binary.Varint(d.b)
	d.take(uint64(max(length, 1)))
	return n
}

func (d *decoder) text() string { return string(d.take(d.number())) }

func (d *decoder) float() float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(d.take(8)))
}

func (d *decoder) value(v reflect.Value) (err error) {
	if _, decode := self(v); decode != nil {
		return decode(d.take(d.number()))
	}
	switch t := v.Type(); v.Kind() {
	case reflect.Bool:
		v.SetBool(d.number() != 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(d.signed())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		v.SetUint(d.number())
	case reflect.Float32, reflect.Float64:
		v.SetFloat(d.float())
	case reflect.Complex64, reflect.Complex128:
		re := d.float()
		v.SetComplex(complex(re, d.float()))
	case reflect.String:
		v.SetString(d.text())
	case reflect.Slice:
		n := d.number()
		if n == 0 {
			return nil
		}
		if t.Elem().Kind() == reflect.Uint8 {
			v.SetBytes(bytes.Clone(d.take(n - 1)))
			return nil
		}
		v.Set(reflect.MakeSlice(t, int(n-1), int(n-1)))
		fallthrough
	case reflect.Array:
		for i := 0; i < v.Len() && err == nil; i++ {
			err = d.value(v.Index(i))
		}
	case reflect.Map:
		n := d.number()
		if n == 0 {
			return nil
		}
		v.Set(reflect.MakeMap(t))
		for range n - 1 {
			key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
			if err := errors.Join(d.value(key), d.value(value)); err != nil {
				return err
			}
			v.SetMapIndex(key, value)
		}
	case reflect.Pointer:
		if d.number() != 0 {
			v.Set(reflect.New(t.Elem()))
			err = d.value(v.Elem())
		}
	case reflect.Interface:
		err = d.held(v)
	case reflect.Struct:
		for i := 0; i < t.NumField() && err == nil; i++ {
			if t.Field(i).IsExported() {
				err = d.value(v.Field(i))
			}
		}
	}
	return err
}

func (d *decoder) held(v reflect.Value) error {
	if d.number() == 0 {
		return nil
	}
	var named any
	if err := gob.NewDecoder(bytes.NewReader(d.take(d.number()))).Decode(&named); err != nil {
		return err
	}
	x := reflect.New(reflect.TypeOf(named)).Elem()
	if err := d.value(x); err != nil {
		return err
	}
	v.Set(x)
	return nil
}
