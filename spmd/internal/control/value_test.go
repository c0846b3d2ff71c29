package control

import (
	"encoding/gob"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// Shape and Square are an interface, and what it may hold.
type (
	Shape  interface{ Area() float64 }
	Square struct{ Side *float64 }
)

// Area implements Shape.
func (s *Square) Area() float64 { return *s.Side * *s.Side }

// node has all kinds of fields that are sent, and some that are not.
type node struct {
	Zero, Nil  *int
	Next       *node
	Deep       **float32
	Minus, NaN float64
	Small      float32
	Complex    complex64
	Empty, No  []string
	Bytes      []byte
	Array      [3]int8
	Map, NoMap map[string]*uint16
	Unsigned   uint64
	Flag       bool
	Any, None  any
	Shapes     []Shape
	When       time.Time
	Big        *big.Int
	Func       func()
	Inside
	hidden int
}

// Inside is embedded.
type Inside struct{ Word string }

// An encoded value arrives with every pointer, sign and length.
func TestValues(t *testing.T) {
	gob.Register(&Square{})
	zero, none, side, minus := 0, uint16(0), 2.5, float32(math.Copysign(0, -1))
	deep := &minus
	in := node{Zero: &zero, Next: &node{Flag: true}, Deep: &deep, Minus: math.Copysign(0, -1), NaN: math.NaN(),
		Small:   math.MaxFloat32,
		Complex: 1 - 2i, Empty: []string{}, Bytes: []byte{0, 255}, Array: [3]int8{-128, 0, 127},
		Map:      map[string]*uint16{"nil": nil, "none": &none},
		Unsigned: math.MaxUint64, Any: -7, Shapes: []Shape{nil, &Square{}, &Square{&side}}, When: time.Unix(1, 2).UTC(),
		Big: new(big.Int).Lsh(big.NewInt(-3), 100), Inside: Inside{"word"}, hidden: 5}
	var out node
	testkit.Must(t, Decode(Encode(&in), 3, &out))
	if !math.IsNaN(out.NaN) || !math.Signbit(out.Minus) || out.hidden != 0 || !math.Signbit(float64(**out.Deep)) {
		t.Errorf("%+v", out)
	}
	in.NaN, out.NaN, in.hidden = 0, 0, 0
	if !reflect.DeepEqual(in, out) {
		t.Errorf("came  %+v\nwant  %+v", out, in)
	}
	var nothing, came *int
	came = &zero
	if err := Decode(Encode(&nothing), 0, &came); err != nil || *came != 0 {
		t.Errorf("%v, %v", came, err)
	}
	came = nil
	if err := Decode(Encode(&nothing), 0, &came); err != nil || came != nil {
		t.Errorf("a nil pointer came as %v, %v", came, err)
	}
	pointer := &zero
	if err := Decode(Encode(&pointer), 0, &came); err != nil || came == nil || *came != 0 {
		t.Errorf("a pointer to 0 came as %v, %v", came, err)
	}
}

// A value that cannot be sent, or that the receiver does not expect, is an error that
// names the rank.
func TestValuesRefused(t *testing.T) {
	type closed struct{ x int }
	circle := &node{}
	circle.Next = circle
	unknown := any(closed{1})
	channel, f := make(chan int), func() {}
	inSlice := []any{func() {}}
	for _, tc := range []struct {
		v    any
		want string
	}{
		{&channel, "rank 3: a value of type chan int cannot be sent"},
		{&f, "rank 3: a value of type func() cannot be sent"},
		{&closed{1}, "closed cannot be sent: none of its fields is exported"},
		{&circle, "rank 3: a value that contains itself cannot be sent"},
		{&unknown, "rank 3: gob: "},
		{&inSlice, "rank 3: gob: "},
	} {
		to := reflect.New(reflect.TypeOf(tc.v).Elem())
		if err := Decode(Encode(tc.v), 3, to.Interface()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%T: %v, want %s", tc.v, err, tc.want)
		}
	}
	n, s := 5, ""
	if err := Decode(Encode(&n), 3, &s); err == nil ||
		!strings.Contains(err.Error(), "of rank 3's value: it is of type int, and string is wanted") {
		t.Error(err)
	}
	message := Encode(&n)
	testkit.Refused(t, Decode(message[:len(message)-1], 3, &n), "too short")
}
