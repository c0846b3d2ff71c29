package transport

import (
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// TestInPlace: what has nothing to move needs no stream, whatever the call; and there
// is no call that is not known.
func TestInPlace(t *testing.T) {
	x := make([]float32, 8)
	p := unsafe.Pointer(&x[0])
	for k := range coll.Kind(64) {
		if !selfKinds.Has(k) || k == coll.Send || k == coll.Recv {
			continue
		}
		c := coll.Call{Kind: k, Dst: p, Src: p, N: 8, RecvN: 8, Counts: []int{8}, RecvCounts: []int{8},
			Type: elem.Float32, Op: elem.Avg}
		if err := (Self{}).Do(nil, c); err != nil {
			t.Errorf("%v: %v", k, err)
		}
	}
	pair := []coll.Call{{Kind: coll.Send, Src: p, N: 8, Type: elem.Float32},
		{Kind: coll.Recv, Dst: p, N: 8, Type: elem.Float32}}
	if err := (Self{}).Group(nil, pair, nil); err != nil {
		t.Error(err)
	}
}

// TestRefused: messages to oneself that would wait for ever, or are of other lengths.
func TestRefused(t *testing.T) {
	send := func(n int) coll.Call { return coll.Call{Kind: coll.Send, N: n} }
	recv := func(n int) coll.Call { return coll.Call{Kind: coll.Recv, N: n} }
	for _, tc := range []struct {
		group bool
		calls []coll.Call
		want  string
	}{
		{false, []coll.Call{send(1)}, "outside a Group would wait for ever"},
		{false, []coll.Call{recv(1)}, "outside a Group would wait for ever"},
		{false, []coll.Call{{Kind: coll.SendRecv, N: 2, RecvN: 3}}, "src has 2 elements, dst 3"},
		{true, []coll.Call{send(0), send(0), recv(0)}, "with 2 Send and 1 Recv"},
		{true, []coll.Call{recv(0), recv(4), send(0), send(5)}, "Send has 5 int8 elements, Recv 4 int8"},
		{true, []coll.Call{recv(3), {Kind: coll.Send, Type: elem.Uint8, N: 3}},
			"Send has 3 uint8 elements, Recv 3 int8"},
	} {
		err := error(nil)
		if tc.group {
			err = (Self{}).Group(nil, tc.calls, nil)
		} else {
			err = (Self{}).Do(nil, tc.calls[0])
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}
