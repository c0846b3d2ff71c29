package nccl

import (
	"fmt"
	"testing"
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
