package nccl

import (
	"context"
	"fmt"
	"math"
	"testing"

	"lockstep/internal/elem"
)

func TestMemAlloc(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, _ := device(t)
	p, err := MemAlloc(d, 1000)
	check(t, err)
	wantCalls(t, "ncclMemAlloc bytes=1000")
	check(t, MemFree(d, p))
	wantCalls(t, fmt.Sprintf("ncclMemFree p=%p", p))
	check(t, MemFree(d, nil))
	_, err = MemAlloc(d, 0)
	wantError(t, err, "ncclMemAlloc", ErrInvalidArgument, "0 bytes")
	wantCalls(t)
	fail(t, "ncclMemAlloc=1,ncclMemFree=5")
	_, err = MemAlloc(d, 8)
	wantError(t, err, "ncclMemAlloc", ErrUnhandledCUDA, "told to fail")
	fail(t, "ncclMemFree=5")
	p, err = MemAlloc(d, 8)
	check(t, err)
	wantError(t, MemFree(d, p), "ncclMemFree", ErrInvalidUsage)
}

func TestRegister(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, _ := comm(t, 0, 2)
	r, err := c.Register(addr(0x1000), 64)
	check(t, err)
	check(t, r.Close())
	check(t, r.Close())
	wantCalls(t, "ncclCommRegister comm=1 p=0x1000 bytes=64", "ncclCommDeregister comm=1 handle=0x1001")

	fail(t, "ncclCommRegister=4,ncclCommDeregister=5")
	_, err = c.Register(addr(0x1000), 64)
	wantError(t, err, "ncclCommRegister", ErrInvalidArgument)
	fail(t, "ncclCommDeregister=5")
	r, err = c.Register(addr(0x1000), 64)
	check(t, err)
	wantError(t, r.Close(), "ncclCommDeregister", ErrInvalidUsage)
	check(t, r.Close())

	r, err = c.Register(addr(0x1000), 64)
	check(t, err)
	check(t, c.Close())
	newCalls(t)
	check(t, r.Close()) // went with the communicator
	wantCalls(t)
}

func TestWindow(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, _ := device(t)
	for i, nonBlocking := range []bool{false, true} {
		fail(t, "")
		c := initComm(t, d, 0, 2, Config{NonBlocking: nonBlocking})
		w, err := c.RegisterWindow(addr(0x1000), 64)
		check(t, err)
		if !w.Registered() {
			t.Error("no window")
		}
		check(t, w.Close())
		check(t, w.Close())
		wantCalls(t, fmt.Sprintf("ncclCommWindowRegister comm=%d p=0x1000 bytes=64 flags=1", i+1),
			fmt.Sprintf("ncclCommWindowDeregister comm=%d win=0x1002", i+1))
		w, err = c.RegisterWindow(addr(0x1000), 0) // NCCL succeeds without making one
		check(t, err)
		if w.Registered() {
			t.Error("a window of nothing")
		}
		check(t, w.Close())
		fail(t, "ncclCommWindowRegister=4")
		_, err = c.RegisterWindow(addr(0x1000), 64)
		wantError(t, err, "ncclCommWindowRegister", ErrInvalidArgument)
		fail(t, "ncclCommWindowDeregister=4")
		w, err = c.RegisterWindow(addr(0x1000), 64)
		check(t, err)
		wantError(t, w.Close(), "ncclCommWindowDeregister", ErrInvalidArgument)
		check(t, c.Close())
		newCalls(t)
	}
}

func TestPreMulSum(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 0, 2)
	for i, tc := range []struct {
		t    elem.Type
		v    float64
		want string
	}{
		{elem.Float32, 0.5, "type=7 residence=1 scalar=0x3f000000"},
		{elem.Float64, -2, fmt.Sprintf("type=8 residence=1 scalar=%#x", math.Float64bits(-2))},
		{elem.Float16, 0.5, "type=6 residence=1 scalar=0x3800"},
		{elem.BFloat16, 0.5, "type=9 residence=1 scalar=0x3f00"},
		{elem.Int8, -1, "type=0 residence=1 scalar=0xff"},
		{elem.Uint8, 200, "type=1 residence=1 scalar=0xc8"},
		{elem.Int32, -2, "type=2 residence=1 scalar=0xfffffffe"},
		{elem.Uint32, 3e9, "type=3 residence=1 scalar=0xb2d05e00"},
		{elem.Int64, -1, "type=4 residence=1 scalar=0xffffffffffffffff"},
		{elem.Uint64, 1 << 63, "type=5 residence=1 scalar=0x8000000000000000"},
	} {
		o, err := c.NewPreMulSum(tc.t, tc.v)
		check(t, err)
		wantCalls(t, "ncclRedOpCreatePreMulSum comm=1 "+tc.want)
		check(t, c.Group(s, []Call{{Kind: Reduce, Type: tc.t, Scaled: o, Peer: 1, N: 2}}))
		wantCalls(t, line("ncclReduce", nil, nil, 2, typeNumbers[tc.t], 1000+i, 1, s))
		check(t, o.Close())
		check(t, o.Close())
		wantCalls(t, fmt.Sprintf("ncclRedOpDestroy comm=1 op=%d", 1000+i))
		wantError(t, c.Group(s, []Call{{Kind: AllReduce, Type: tc.t, Scaled: o}}), "ncclAllReduce", ErrInvalidArgument, "closed")
	}
	o, err := c.NewPreMulSumAt(elem.Float32, addr(0x4000))
	check(t, err)
	wantCalls(t, "ncclRedOpCreatePreMulSum comm=1 type=7 residence=0 scalar=0x4000")
	_, err = c.NewPreMulSumAt(elem.Float32, nil)
	wantError(t, err, "ncclRedOpCreatePreMulSum", ErrInvalidArgument)
	wantError(t, c.Group(s, []Call{{Kind: AllReduce, Type: elem.Float64, Scaled: o}}), "ncclAllReduce", ErrInvalidArgument, "of float32 for float64")
	n, err := c.Split(context.Background(), 0, 0, Config{})
	check(t, err)
	wantError(t, n.Group(s, []Call{{Kind: AllReduce, Type: elem.Float32, Scaled: o}}), "ncclAllReduce", ErrInvalidArgument, "another communicator")
	check(t, n.Close())
	fail(t, "ncclRedOpCreatePreMulSum=3,ncclRedOpDestroy=4")
	_, err = c.NewPreMulSum(elem.Float32, 1)
	wantError(t, err, "ncclRedOpCreatePreMulSum", ErrInternal)
	wantError(t, o.Close(), "ncclRedOpDestroy", ErrInvalidArgument)
}
