package nccl

import (
	"fmt"
	"io"
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

// Memory is registered, by itself or as a window, until Close or the end of its communicator.
func TestRegister(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, _ := device(t)
	plain := func(c *Comm) (io.Closer, error) { return c.Register(addr(0x1000), 64) }
	window := func(c *Comm) (io.Closer, error) { return c.RegisterWindow(addr(0x1000), 64) }
	for i, tc := range []struct {
		nonBlocking     bool
		register        func(c *Comm) (io.Closer, error)
		opens, closes   string
		opened, closing string // further arguments
	}{
		{false, plain, "ncclCommRegister", "ncclCommDeregister", "", " handle=0x1001"},
		{false, window, "ncclCommWindowRegister", "ncclCommWindowDeregister", " flags=1", " win=0x1002"},
		{true, window, "ncclCommWindowRegister", "ncclCommWindowDeregister", " flags=1", " win=0x1002"},
	} {
		fail(t, "")
		c := initComm(t, d, 0, 2, Config{NonBlocking: tc.nonBlocking})
		r, err := tc.register(c)
		check(t, err)
		check(t, r.Close())
		check(t, r.Close())
		wantCalls(t, fmt.Sprintf("%s comm=%d p=0x1000 bytes=64%s", tc.opens, i+1, tc.opened),
			fmt.Sprintf("%s comm=%d%s", tc.closes, i+1, tc.closing))

		fail(t, tc.opens+"=4")
		_, err = tc.register(c)
		wantError(t, err, tc.opens, ErrInvalidArgument)
		fail(t, tc.closes+"=5")
		r, err = tc.register(c)
		check(t, err)
		wantError(t, r.Close(), tc.closes, ErrInvalidUsage)
		check(t, r.Close())

		fail(t, "")
		r, err = tc.register(c)
		check(t, err)
		check(t, c.Close())
		newCalls(t)
		check(t, r.Close()) // went with the communicator
		wantCalls(t)
	}
}

// NCCL may make no window, and say that it has succeeded.
func TestNoWindow(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, _ := comm(t, 0, 2)
	for bytes, want := range map[int]bool{64: true, 0: false} {
		w, err := c.RegisterWindow(addr(0x1000), bytes)
		check(t, err)
		if w.Registered() != want {
			t.Errorf("a window of %d bytes: %v", bytes, !want)
		}
		check(t, w.Close())
	}
}
