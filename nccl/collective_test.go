package nccl

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// The words of nccl.h, written out again.
var (
	typeNumbers = map[elem.Type]int{elem.Int8: 0, elem.Uint8: 1, elem.Int32: 2, elem.Uint32: 3,
		elem.Int64: 4, elem.Uint64: 5, elem.Float16: 6, elem.Float32: 7, elem.Float64: 8, elem.BFloat16: 9}
	opNumbers = map[elem.Op]int{elem.Sum: 0, elem.Prod: 1, elem.Max: 2, elem.Min: 3, elem.Avg: 4}
)

// collectives is every call, and the arguments of the C function.
var collectives = []struct {
	kind               Function
	name               string
	src, dst, op, peer bool
}{
	{AllReduce, "ncclAllReduce", true, true, true, false},
	{Reduce, "ncclReduce", true, true, true, true},
	{Broadcast, "ncclBroadcast", true, true, false, true},
	{AllGather, "ncclAllGather", true, true, false, false},
	{ReduceScatter, "ncclReduceScatter", true, true, true, false},
	{AllToAll, "ncclAlltoAll", true, true, false, false},
	{Gather, "ncclGather", true, true, false, true},
	{Scatter, "ncclScatter", true, true, false, true},
	{Send, "ncclSend", true, false, false, true},
	{Recv, "ncclRecv", false, true, false, true},
}

// memory returns n bytes of the double's device, which the host reaches, and frees them with the
// test.
func memory(t *testing.T, d *cuda.Device, n int) (unsafe.Pointer, []byte) {
	t.Helper()
	p, err := d.Malloc(n)
	check(t, err)
	t.Cleanup(func() { check(t, d.Free(p)) })
	b := unsafe.Slice((*byte)(p), n)
	clear(b)
	return p, b
}

// line is the log line of a collective.
func line(name string, src, dst unsafe.Pointer, n, typ, op, peer int, s *cuda.Stream) string {
	hex := func(p unsafe.Pointer) string {
		if p == nil {
			return "(nil)"
		}
		return fmt.Sprintf("%p", p)
	}
	return fmt.Sprintf("%s src=%s dst=%s n=%d type=%d op=%d peer=%d comm=1 %s", name, hex(src), hex(dst),
		n, typ, op, peer, streamArg(s))
}

// TestArguments makes every collective with every type and operation.
func TestArguments(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 1, 3)
	src, _ := memory(t, c.Device(), 4096)
	dst, _ := memory(t, c.Device(), 4096)
	for _, k := range collectives {
		if k.kind.String() != k.name {
			t.Errorf("kind %d is called %v", k.kind, k.kind)
		}
		for ty, tn := range typeNumbers {
			for op, on := range opNumbers {
				x := GroupCall{Kind: k.kind, Type: ty, Op: op, Peer: 2, N: 5}
				want := []int{-1, -1}
				if k.src {
					x.Src = src
				}
				if k.dst {
					x.Dst = dst
				}
				if k.op {
					want[0] = on
				}
				if k.peer {
					want[1] = 2
				}
				expect := line(k.name, x.Src, x.Dst, 5, tn, want[0], want[1], s)
				check(t, c.one(s, x))
				wantCalls(t, expect)
			}
		}
	}
	check(t, c.AllReduce(s, dst, src, 5, elem.Complex64, elem.Sum)) // complex numbers are pairs
	wantCalls(t, line("ncclAllReduce", src, dst, 10, 7, 0, -1, s))
	check(t, c.AllGather(s, dst, src, 5, elem.Complex128))
	wantCalls(t, line("ncclAllGather", src, dst, 10, 8, -1, -1, s))
	check(t, c.AllReduce(s, dst, dst, 1<<40, elem.Int8, elem.Sum)) // NCCL counts in size_t
	wantCalls(t, strings.Replace(line("ncclAllReduce", dst, dst, 0, 0, 0, -1, s), "n=0", "n=1099511627776", 1))
}

func TestEveryStatus(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 1, 3)
	for _, k := range collectives {
		for status := Result(1); status <= 9; status++ {
			fail(t, fmt.Sprintf("%s=%d", k.name, status))
			wantError(t, c.one(s, GroupCall{Kind: k.kind, Peer: 2}), k.name, status, "rank 1: ", "0 int8 elements",
				"was told to fail")
		}
	}
}

func TestRefused(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 1, 3)
	for _, k := range collectives {
		refused := func(x GroupCall, text string) {
			t.Helper()
			x.Kind = k.kind
			wantError(t, c.one(s, x), k.name, ErrInvalidArgument, text)
		}
		refused(GroupCall{N: -2}, "-2 elements")
		refused(GroupCall{Type: elem.Type(200)}, "elem.Type(200)")
		if k.op {
			refused(GroupCall{Op: elem.Ops}, "no such operation: and")
		}
		if k.peer {
			refused(GroupCall{Peer: 3}, "rank 3 of a communicator of 3 ranks")
			refused(GroupCall{Peer: -1}, "rank -1 of")
		}
	}
	wantError(t, c.AllReduce(s, nil, nil, 0, elem.Complex64, elem.Prod), "ncclAllReduce",
		ErrInvalidArgument, "NCCL multiplies no complex numbers")
	wantError(t, c.AllReduce(s, nil, nil, 0, elem.Complex128, elem.Max), "ncclAllReduce",
		ErrInvalidArgument, "max of complex128")
	wantError(t, c.Send(s, nil, 0, elem.Int8, 1<<32+1), "ncclSend", ErrInvalidArgument)
	wantError(t, c.Group(s, []GroupCall{{Kind: Send}, {Kind: Kinds}}), "nccl.Function(10)", ErrInvalidArgument,
		"call 2 of 2", "no such kind")
	wantError(t, c.Group(s, []GroupCall{{Kind: Send}, {Kind: Recv, Peer: 9}}), "ncclRecv", ErrInvalidArgument,
		"call 2 of 2 in a group", "rank 9 of")
	check(t, s.Close())
	wantError(t, c.Recv(s, nil, 0, elem.Int8, 0), "ncclRecv", ErrInvalidArgument, "the stream is closed")
	wantError(t, c.Group(s, []GroupCall{{Kind: Send}}), "ncclSend", ErrInvalidArgument, "the stream is closed")
	wantCalls(t)
}

// TestFallback makes the collectives that NCCL has from 2.28 of sends and receives.
func TestFallback(t *testing.T) {
	if !(double{version: 22707, missing: []string{"ncclAlltoAll", "ncclGather", "ncclScatter"}}).in(t) {
		return
	}
	c, s := comm(t, 1, 3)
	src, _ := memory(t, c.Device(), 4096)
	dst, _ := memory(t, c.Device(), 4096)
	send := func(block, peer int) string {
		return line("ncclSend", unsafe.Add(src, block*5*8), nil, 5, 8, -1, peer, s)
	}
	recv := func(block, peer int) string {
		return line("ncclRecv", nil, unsafe.Add(dst, block*5*8), 5, 8, -1, peer, s)
	}
	check(t, c.AllToAll(s, dst, src, 5, elem.Float64))
	wantCalls(t, "ncclGroupStart", send(0, 0), recv(0, 0), send(1, 1), recv(1, 1), send(2, 2), recv(2, 2),
		"ncclGroupEnd")
	check(t, c.Gather(s, dst, src, 5, elem.Float64, 1))
	wantCalls(t, "ncclGroupStart", recv(0, 0), send(0, 1), recv(1, 1), recv(2, 2), "ncclGroupEnd")
	check(t, c.Gather(s, nil, src, 5, elem.Float64, 2))
	wantCalls(t, "ncclGroupStart", send(0, 2), "ncclGroupEnd")
	check(t, c.Scatter(s, dst, src, 5, elem.Float64, 1))
	wantCalls(t, "ncclGroupStart", send(0, 0), send(1, 1), recv(0, 1), send(2, 2), "ncclGroupEnd")
	check(t, c.Scatter(s, dst, nil, 5, elem.Float64, 0))
	wantCalls(t, "ncclGroupStart", recv(0, 0), "ncclGroupEnd")
	check(t, c.AllToAll(s, nil, nil, 0, elem.Float64))
	wantCalls(t)

	fail(t, "ncclRecv=4@9") // the eight receives before went well
	wantError(t, c.AllToAll(s, dst, src, 5, elem.Float64), "ncclRecv", ErrInvalidArgument, "5 float64 elements")
	wantCalls(t, "ncclGroupStart", send(0, 0), recv(0, 0), "ncclGroupEnd")
	fail(t, "ncclGroupEnd=2")
	wantError(t, c.AllToAll(s, dst, src, 5, elem.Float64), "ncclGroupEnd", ErrSystem)
	fail(t, "ncclGroupStart=2")
	wantError(t, c.AllToAll(s, dst, src, 5, elem.Float64), "ncclGroupStart", ErrSystem)
}

// TestOneRank makes the moves of one rank alone, with and without NCCL's own functions.
func TestOneRank(t *testing.T) {
	for _, missing := range [][]string{nil, {"ncclAlltoAll", "ncclGather", "ncclScatter"}} {
		t.Run(fmt.Sprint(len(missing)), func(t *testing.T) {
			if !(double{missing: missing}).in(t) {
				return
			}
			c, s := comm(t, 0, 1)
			srcp, src := memory(t, c.Device(), 64)
			dstp, dst := memory(t, c.Device(), 64)
			for i := range src {
				src[i] = byte(i + 1)
			}
			for _, k := range collectives[:Send] {
				clear(dst)
				check(t, c.one(s, GroupCall{Kind: k.kind, Src: srcp, Dst: dstp, N: 5, Type: elem.Int32}))
				if !bytes.Equal(dst[:20], src[:20]) || dst[20] != 0 {
					t.Errorf("%v left % x", k.kind, dst[:24])
				}
			}
			clear(dst)
			check(t, c.Group(s, []GroupCall{{Kind: Send, Src: srcp, N: 3, Type: elem.Uint8},
				{Kind: Recv, Dst: dstp, N: 3, Type: elem.Uint8}}))
			if !bytes.Equal(dst[:4], []byte{1, 2, 3, 0}) {
				t.Errorf("sent to itself: % x", dst[:4])
			}
		})
	}
}

func TestGroup(t *testing.T) {
	if !(double{missing: []string{"ncclScatter"}}).in(t) {
		return
	}
	c, s := comm(t, 0, 3)
	p, _ := memory(t, c.Device(), 4096)
	newCalls(t)
	calls := []GroupCall{
		{Kind: AllReduce, Type: elem.Float32, Op: elem.Avg, Dst: p, Src: p, N: 7},
		{Kind: Recv, Type: elem.Int8, Peer: 2, Dst: p, N: 1},
		{Kind: Send, Type: elem.BFloat16, Peer: 1, Src: p, N: 9},
		{Kind: Scatter, Type: elem.Int32, Peer: 1, Dst: p, N: 2},
		{Kind: AllReduce, Type: elem.Float32, Op: elem.Max, Dst: p, Src: p, N: 7},
	}
	check(t, c.Group(s, calls))
	want := []string{"ncclGroupStart",
		line("ncclAllReduce", p, p, 7, 7, 4, -1, s),
		line("ncclRecv", nil, p, 1, 0, -1, 2, s),
		line("ncclSend", p, nil, 9, 9, -1, 1, s),
		"ncclGroupStart", line("ncclRecv", nil, p, 2, 2, -1, 1, s), "ncclGroupEnd",
		line("ncclAllReduce", p, p, 7, 7, 2, -1, s),
		"ncclGroupEnd"}
	threads := map[string]bool{}
	var got []string
	for _, l := range newLines(t) {
		thread, call, _ := strings.Cut(l, " ")
		threads[thread] = true
		got = append(got, call)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("calls:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if len(threads) != 1 { // the state of a group belongs to a thread
		t.Errorf("the group ran on %d threads", len(threads))
	}
	check(t, c.Group(s, nil))
	wantCalls(t)

	fail(t, "ncclSend=4")
	wantError(t, c.Group(s, calls), "ncclSend", ErrInvalidArgument, "rank 0: ",
		"call 3 of 5 in a group, 9 bfloat16 elements", "told to fail")
	wantCalls(t, append(append([]string{}, want[:4]...), "ncclGroupEnd")...)
	fail(t, "ncclGroupEnd=6")
	wantError(t, c.Group(s, calls[:2]), "ncclGroupEnd", ErrRemote, "a group of 2 calls")
	fail(t, "ncclGroupStart=3")
	newCalls(t)
	wantError(t, c.Group(s, calls[:2]), "ncclGroupStart", ErrInternal)
	wantCalls(t, "ncclGroupStart")
	fail(t, "")
	check(t, c.Group(s, calls)) // no group is left open
	wantCalls(t, want...)

	many := make([]GroupCall, 200) // beyond what a group usually has
	for i := range many {
		many[i] = GroupCall{Kind: AllReduce, Dst: p, Src: p, N: i}
	}
	check(t, c.Group(s, many))
	got = newCalls(t)
	for i := range many {
		if w := line("ncclAllReduce", p, p, i, 0, 0, -1, s); len(got) != 202 || got[i+1] != w {
			t.Fatalf("call %d of %d, want %s", i, len(got), w)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	if !(double{env: []string{"FAKENCCL_LOG="}}).in(t) {
		return
	}
	c, s := comm(t, 0, 2)
	p, _ := memory(t, c.Device(), 4096)
	never := func(what any, call func() error) {
		if a := testkit.Allocations(50, func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		}); a != 0 {
			t.Errorf("%v allocates %v times", what, a)
		}
	}
	x := GroupCall{Kind: AllReduce, Type: elem.Float32, Src: p, Dst: p, N: 7}
	calls := slices.Repeat([]GroupCall{x}, 64)
	for _, k := range collectives {
		x.Kind = k.kind
		never(k.kind, func() error { return c.one(s, x) })
	}
	for _, n := range []int{1, 2, 64} {
		never(n, func() error { return c.Group(s, calls[:n]) })
	}
}
