package cudampi

import (
	"fmt"
	"strings"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Packages that carry the calls of a Comm by other means than MPI use the checks below, too. So
// their checks and errors are the same.

// Usable refuses a call on a freed Comm, or after Stop.
func (c *Comm) Usable(op string) error {
	switch {
	case !c.live:
		return c.Errorf(op, ErrComm, "this Comm was freed")
	case !world.running.Load():
		return c.Errorf(op, ErrComm, "MPI was stopped")
	}
	return nil
}

// Ready refuses a call that cannot go on, before anything is sent. dst and src must be there for n
// elements.
func (c *Comm) Ready(op string, n int, t elem.Type, dst, src unsafe.Pointer) error {
	if c.live && world.running.Load() && uint(n) <= maxElems && t < elem.Types && (n == 0 || dst != nil && src != nil) {
		return nil
	}
	return c.refuse(op, n, t)
}

// refuse returns Ready's finding.
func (c *Comm) refuse(op string, n int, t elem.Type) error {
	if err := c.Usable(op); err != nil {
		return err
	}
	switch {
	case uint(n) > maxElems:
		return c.Errorf(op, ErrCount, "%d elements, but the count goes from 0 to %d", n, maxElems)
	case t >= elem.Types:
		return c.Errorf(op, ErrType, "%v is no element type", t)
	default:
		return c.Errorf(op, ErrBuffer, "nil address for %d elements", n)
	}
}

// CheckOp refuses numbers of no operation, and operations that a type does not have.
func (c *Comm) CheckOp(name string, op elem.Op, t elem.Type) error {
	switch {
	case op.Has(t):
		return nil
	case op < elem.HostOps:
		return c.Errorf(name, ErrOp, "%v of %v", op, t)
	}
	return c.Errorf(name, ErrOp, "%v is no operation", op)
}

// CheckScan refuses a Scan or an ExScan that cannot go on.
func (c *Comm) CheckScan(name string, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if op == elem.Avg {
		return c.Errorf(name, ErrOp, "a scan has no %v", op)
	}
	return c.CheckOp(name, op, t)
}

// CheckRoot refuses a root that is not in c.
func (c *Comm) CheckRoot(op string, root int) error {
	if uint(root) < uint(c.size) {
		return nil
	}
	return c.Errorf(op, ErrRoot, "root %d in a communicator of %d ranks", root, c.size)
}

// CheckRank refuses a rank that is not in c.
func (c *Comm) CheckRank(op string, peer int) error {
	if uint(peer) < uint(c.size) {
		return nil
	}
	return c.Errorf(op, ErrRank, "rank %d in a communicator of %d ranks", peer, c.size)
}

const opSendRecv = "MPI_Sendrecv"

// CheckSendRecv refuses a SendRecv that cannot go on.
func (c *Comm) CheckSendRecv(
	dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type,
) error {
	if err := c.readyParts(opSendRecv, dst, recvN, src, sendN, t); err != nil {
		return err
	}
	if err := c.CheckRank(opSendRecv, from); err != nil {
		return err
	}
	if err := c.CheckRank(opSendRecv, to); err != nil {
		return err
	}
	if dst == src && recvN > 0 && sendN > 0 {
		return c.Errorf(opSendRecv, ErrBuffer,
			"dst is src, %d and %d elements: there is no in-place form", recvN, sendN)
	}
	return nil
}

// Check turns the code of a call into an error, nil for success.
func (c *Comm) Check(op string, code int) error {
	if code == success {
		return nil
	}
	return c.failed(op, code, "")
}

// failed returns the error of a failing code. detail replaces the library's text, which is left out
// if it says no more than the class does.
func (c *Comm) failed(op string, code int, detail string) error {
	class, text := sysError(code)
	r := Result(class)
	if detail == "" {
		if text = strings.Join(strings.Fields(text), " "); text != r.Error() {
			detail = text
		}
	}
	return c.Errorf(op, r, "%s", detail)
}

// Errorf returns the error of a call, with this rank and the place in the application.
func (c *Comm) Errorf(op string, r Result, format string, args ...any) error {
	return &ccall.Error{Op: op, Rank: c.rank, At: ccall.At(), Err: r, Detail: fmt.Sprintf(format, args...)}
}

// Content is what a message of so many bytes has, elements of type t, as calls.h packs it.
func Content(bytes int, t elem.Type) int { return bytes<<8 | int(t) }

// Unpack returns the bytes and the type of a Content.
func Unpack(content int) (bytes int, t elem.Type) { return content >> 8, elem.Type(content) }

// CheckMessage is Check for a call that received: the message must have had exactly n elements of
// type t. got is its Content, -1 if the library does not say.
func (c *Comm) CheckMessage(op string, code, got, n int, t elem.Type, from int) error {
	if code == success && got == Content(n*t.Size(), t) {
		return nil
	}
	got, its := Unpack(got)
	size := t.Size()
	switch {
	case code != success && Result(code) != ErrTruncate:
		if class, _ := sysError(code); Result(class) != ErrTruncate {
			return c.failed(op, code, "")
		}
	}
	r := ErrCount
	if code != success || got > n*size {
		r = ErrTruncate
	}
	switch {
	case got >= 0 && its != t:
		return c.Errorf(op, ErrType, "message from rank %d has %v elements, %d %v elements expected", from, its, n, t)
	case code != success && got <= n*size: // the library cuts the length as well
		return c.Errorf(op, r, "message from rank %d has more than the %d %v elements expected", from, n, t)
	case got%size != 0:
		return c.Errorf(op, r, "message from rank %d has %d bytes, %d (%d %v elements) expected", from,
			got, n*size, n, t)
	default:
		return c.Errorf(op, r, "message from rank %d has %d %v elements, %d expected", from, got/size, t, n)
	}
}

// All reports whether every rank says yes. Collective.
func (c *Comm) All(yes bool) (bool, error) {
	n := new(int32)
	if yes {
		*n = 1
	}
	err := c.AllReduce(unsafe.Pointer(n), unsafe.Pointer(n), 1, elem.Int32, elem.Min)
	return *n == 1, err
}

// FirstFailure returns the failure of the first rank that has one, if any, on all ranks.
// Collective.
func (c *Comm) FirstFailure(mine error) error {
	const room = 512
	text := make([]byte, room)
	if mine != nil {
		copy(text, strings.ReplaceAll(mine.Error(), "\n", "; "))
	}
	all := make([]byte, room*c.size)
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&text[0]), room, elem.Uint8); err != nil {
		return err
	}
	for r := range c.size {
		said, _, _ := strings.Cut(string(all[r*room:(r+1)*room]), "\x00")
		switch {
		case said == "":
		case r == c.rank:
			return mine
		default:
			return fmt.Errorf("rank %d: %s", r, said)
		}
	}
	return nil
}

// CallsInC returns the address of a struct calls (calls.h), and the word that names this Comm
// there: MPI for C code.
func (c *Comm) CallsInC() (calls unsafe.Pointer, comm uintptr) { return sysCalls(), sysHandleWord(c.h) }
