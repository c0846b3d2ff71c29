package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// configs are the double's readings of ncclConfig_t, for a version and a Config.
var configs = []struct {
	version int
	cfg     Config
	want    string
}{
	{21801, Config{}, "size=48 version=21801 blocking=1"},
	{22505, Config{MinCTAs: 2, MaxCTAs: 4, CGAClusterSize: 2, NetName: "IB", CommName: "world", SplitShare: true},
		"size=48 version=22505 blocking=1 cgaClusterSize=2 minCTAs=2 maxCTAs=4 netName=IB splitShare=1"},
	{22605, Config{TrafficClass: 7}, "size=48 version=22605 blocking=1 trafficClass=7"},
	{22707, Config{MinCTAs: 2, CommName: "world", NVLSCTAs: 8, CTAPolicy: 1},
		"size=72 version=22707 blocking=1 minCTAs=2 maxCTAs=64 commName=world CTAPolicy=1 nvlsCTAs=8"},
	{22803, Config{MaxCTAs: 16, CGAClusterSize: -1}, "size=80 version=22803 blocking=1 cgaClusterSize=0 maxCTAs=16"},
	{22902, Config{UnmixedGraphs: true}, "size=88 version=22902 blocking=1 graphUsageMode=1"},
	{23007, Config{NonBlocking: true}, "size=88 version=22902 blocking=0"},
}

// TestUnmixedGraphs: before 2.29 it is a variable of the environment, which the user may have set.
func TestUnmixedGraphs(t *testing.T) {
	const name = "NCCL_GRAPH_MIXING_SUPPORT"
	for _, tc := range []struct {
		name    string
		version int
		set     string
		unmixed bool
		want    string
	}{
		{"as it is", 22803, "", false, ""},
		{"before 2.29", 22803, "", true, "0"},
		{"set by the user", 22803, "1", true, "1"},
		{"since 2.29", 22902, "", true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !(double{version: tc.version, env: []string{name + "=" + tc.set}}).in(t) {
				return
			}
			d, _ := device(t)
			check(t, initComm(t, d, 0, 1, Config{UnmixedGraphs: tc.unmixed}).Close())
			if got := os.Getenv(name); got != tc.want {
				t.Errorf("%s=%s, want %q", name, got, tc.want)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	for _, tc := range configs {
		t.Run(fmt.Sprint(tc.version), func(t *testing.T) {
			if !(double{version: tc.version}).in(t) {
				return
			}
			d, _ := device(t)
			id, err := NewID()
			check(t, err)
			newCalls(t)
			c, err := Init(context.Background(), d, id, 1, 3, tc.cfg)
			check(t, err)
			wantCalls(t, "ncclCommInitRankConfig size=3 rank=1 id=1..-128 "+tc.want)
			if c.Rank() != 1 || c.Size() != 3 || c.Device() != d {
				t.Errorf("rank %d of %d on %v", c.Rank(), c.Size(), c.Device())
			}
			check(t, c.Close())
		})
	}
}

func TestInitFails(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, _ := device(t)
	for _, nonBlocking := range []bool{false, true} {
		fail(t, "ncclCommInitRankConfig=2")
		c, err := Init(context.Background(), d, ID{}, 1, 2, Config{NonBlocking: nonBlocking})
		wantError(t, err, "ncclCommInitRankConfig", ErrSystem, "rank 1: ", "was told to fail")
		if c != nil {
			t.Error("a communicator came with the error")
		}
	}
	newCalls(t)
	fail(t, "async=6") // a non-blocking initialisation that fails later is freed
	_, err := Init(context.Background(), d, ID{}, 1, 2, Config{NonBlocking: true})
	wantError(t, err, "ncclCommInitRankConfig", ErrRemote)
	if calls := newCalls(t); len(calls) != 2 || !strings.HasPrefix(calls[1], "ncclCommAbort") {
		t.Errorf("calls %q, want an abort last", calls)
	}
	for _, r := range [][2]int{{-1, 2}, {2, 2}, {0, 0}} {
		_, err = Init(context.Background(), d, ID{}, r[0], r[1], Config{})
		wantError(t, err, "ncclCommInitRankConfig", ErrInvalidArgument, fmt.Sprintf("rank %d of %d ranks", r[0], r[1]))
	}
	wantCalls(t)
}

// deadline is a context that a test lets run out.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until the double was called as want says.
func eventually(t *testing.T, want string) {
	t.Helper()
	var all []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, call := range newCalls(t) {
			if strings.HasPrefix(call, want) {
				return
			}
			all = append(all, call)
		}
	}
	t.Errorf("no %s among %q", want, all)
}

func TestInitDeadline(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, _ := device(t)
	release := hang(t, "ncclCommInitRankConfig")
	_, err := Init(deadline(t), d, ID{}, 1, 4, Config{})
	wantError(t, err, "ncclCommInitRankConfig", context.DeadlineExceeded, "rank 1: ", "waited 0.", "all 4 ranks")
	release() // the peer comes after all: the communicator that nobody wants is aborted
	eventually(t, "ncclCommAbort")

	release = hang(t, "ncclCommInitRankConfig")
	_, err = Init(deadline(t), d, ID{}, 1, 4, Config{NonBlocking: true})
	wantError(t, err, "ncclCommInitRankConfig", context.DeadlineExceeded, "waited 0.", "all 4 ranks")
	if calls := newCalls(t); len(calls) != 2 || !strings.HasPrefix(calls[1], "ncclCommAbort") {
		t.Errorf("calls %q, want an abort on the spot", calls)
	}
	release()

	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("the job ends")
	cancel(cause)
	for _, nonBlocking := range []bool{false, true} {
		_, err = Init(ctx, d, ID{}, 0, 1, Config{NonBlocking: nonBlocking})
		wantError(t, err, "ncclCommInitRankConfig", cause)
	}
	wantCalls(t)
}

func TestCloseOrder(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 0, 2)
	check(t, c.Close())
	wantCalls(t, "ncclCommFinalize comm=1", "ncclCommDestroy comm=1")
	check(t, c.Close())
	check(t, c.Abort())
	check(t, c.Finalize(context.Background()))
	wantCalls(t)
	wantError(t, c.AllReduce(s, addr(0x8000), addr(0x8000), 1, elem.Float32, elem.Sum), "ncclAllReduce",
		ErrInvalidUsage, "closed")
	wantError(t, c.Group(s, []GroupCall{{Kind: Send}, {Kind: Recv}}), "ncclSend", ErrInvalidUsage, "closed")
	wantError(t, c.AsyncError(), "ncclCommGetAsyncError", ErrInvalidUsage, "closed")
	_, err := c.Split(context.Background(), 0, 0, Config{})
	wantError(t, err, "ncclCommSplit", ErrInvalidUsage, "closed")
	wantCalls(t)

	c = initComm(t, c.Device(), 0, 2, Config{})
	check(t, c.Finalize(context.Background()))
	check(t, c.Finalize(context.Background()))
	check(t, c.Close())
	wantCalls(t, "ncclCommFinalize comm=2", "ncclCommDestroy comm=2")
}

func TestAbort(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 0, 2)
	check(t, c.Abort())
	check(t, c.Abort())
	check(t, c.Close())
	wantCalls(t, "ncclCommAbort comm=1")
	wantError(t, c.AllReduce(s, addr(0x8000), addr(0x8000), 1, elem.Float32, elem.Sum), "ncclAllReduce",
		ErrInvalidUsage, "closed")
	c = initComm(t, c.Device(), 0, 2, Config{})
	fail(t, "ncclCommAbort=3")
	wantError(t, c.Abort(), "ncclCommAbort", ErrInternal)
}

func TestEndFails(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, _ := comm(t, 0, 2)
	fail(t, "ncclCommFinalize=6")
	wantError(t, c.Close(), "ncclCommFinalize", ErrRemote, "told to fail")
	wantCalls(t, "ncclCommFinalize comm=1", "ncclCommAbort comm=1")
	check(t, c.Close())

	fail(t, "ncclCommDestroy=1")
	c = initComm(t, c.Device(), 0, 2, Config{})
	wantError(t, c.Close(), "ncclCommDestroy", ErrUnhandledCUDA)
	check(t, c.Close())
	wantCalls(t, "ncclCommFinalize comm=2", "ncclCommDestroy comm=2")
}

func TestAsyncError(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, _ := comm(t, 1, 2)
	check(t, c.AsyncError())
	fail(t, "async=7")
	check(t, c.AsyncError()) // in progress is no error
	fail(t, "ncclCommGetAsyncError=4")
	wantError(t, c.AsyncError(), "ncclCommGetAsyncError", ErrInvalidArgument)
	fail(t, "async=6")
	wantError(t, c.AsyncError(), "ncclCommGetAsyncError", ErrRemote, "rank 1: ", "an earlier operation", "told to fail")
	check(t, c.Close()) // the ranks cannot end together any more
	wantCalls(t, "ncclCommAbort comm=1")
}

// TestCloseAfterErrors closes after a collective failed: of a wrong argument as ever, of anything
// else by an abort.
func TestCloseAfterErrors(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, s := device(t)
	for status, end := range map[Result]string{ErrUnhandledCUDA: "ncclCommAbort",
		ErrSystem: "ncclCommAbort", ErrInternal: "ncclCommAbort",
		ErrRemote: "ncclCommAbort", ErrInvalidArgument: "ncclCommDestroy", ErrInvalidUsage: "ncclCommDestroy"} {
		c := initComm(t, d, 0, 2, Config{})
		fail(t, fmt.Sprintf("ncclAllReduce=%d", status))
		wantError(t, c.AllReduce(s, addr(0x8000), addr(0x8000), 1, elem.Float32, elem.Sum), "ncclAllReduce", status)
		check(t, c.Close())
		if calls := newCalls(t); !strings.HasPrefix(calls[len(calls)-1], end) {
			t.Errorf("%v: calls %q, want %s last", status, calls, end)
		}
	}
}

func TestFinalizeDeadline(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, _ := comm(t, 0, 4)
	release := hang(t, "ncclCommFinalize")
	wantError(t, c.Finalize(deadline(t)), "ncclCommFinalize", context.DeadlineExceeded, "waited 0.", "4 ranks")
	// NCCL is still in there: freeing the communicator would pull the rug from under it.
	wantError(t, c.Close(), "ncclCommAbort", ErrInvalidUsage, "left to the end of the process")
	check(t, c.Abort())
	wantCalls(t, "ncclCommFinalize comm=1")
	release()

	c = initComm(t, c.Device(), 0, 4, Config{NonBlocking: true})
	hang(t, "ncclCommFinalize")
	wantError(t, c.Finalize(deadline(t)), "ncclCommFinalize", context.DeadlineExceeded)
	check(t, c.Abort()) // ends the call, which has given NCCL's back
	wantCalls(t, "ncclCommFinalize comm=2", "ncclCommAbort comm=2")
}

// TestOneHeap: threads that enter NCCL share a heap, so that memory freed by one is there for the
// next.
func TestOneHeap(t *testing.T) {
	if !(double{env: []string{"MALLOC_ARENA_MAX="}}).in(t) {
		return
	}
	d, _ := device(t)
	id, err := NewID()
	check(t, err)
	var threads sync.WaitGroup
	begin := make(chan struct{})
	const n = 8
	failed := make([]int, n)
	for i := range n {
		threads.Add(1)
		go func() {
			defer threads.Done()
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, not before all have theirs
			<-begin
			l := makeLink(d)
			_, failed[i] = sysInit(&l, id, sysConfig(&Config{}, library.version))
		}()
	}
	close(begin)
	threads.Wait()
	for i, status := range failed {
		if status != statusOK {
			t.Fatalf("thread %d: status %d", i, status)
		}
	}
	heaps := filepath.Join(t.TempDir(), "heaps")
	t.Setenv("FAKENCCL_HEAPS", heaps)
	check(t, initComm(t, d, 0, 1, Config{}).Close())
	state, err := os.ReadFile(heaps)
	check(t, err)
	if got := strings.Count(string(state), "<heap nr="); got != 1 {
		t.Errorf("%d heaps, want 1\n%s", got, state)
	}
}

func TestSplit(t *testing.T) {
	if !(double{env: []string{"FAKENCCL_CHILD=1/3"}}).in(t) {
		return
	}
	d, s := device(t)
	c := initComm(t, d, 5, 6, Config{MinCTAs: 2, SplitShare: true, CommName: "world"})
	ctx := context.Background()
	n, err := c.Split(ctx, 4, -7, Config{CommName: "row"})
	check(t, err)
	if n.Rank() != 1 || n.Size() != 3 || n.Device() != d {
		t.Errorf("rank %d of %d", n.Rank(), n.Size())
	}
	wantCalls(t, "ncclCommSplit comm=1 color=4 key=-7 size=80 version=22803 blocking=1 minCTAs=2 "+
		"maxCTAs=64 splitShare=1 commName=row")
	check(t, n.AllReduce(s, nil, nil, 0, elem.Int8, elem.Max))
	wantCalls(t, "ncclAllReduce src=(nil) dst=(nil) n=0 type=0 op=2 peer=-1 comm=2 "+streamArg(s))
	wantError(t, n.Send(s, addr(0x8000), 1, elem.Int8, 3), "ncclSend", ErrInvalidArgument,
		"rank 3 of a communicator of 3 ranks")
	check(t, n.Close())
	wantCalls(t, "ncclCommFinalize comm=2", "ncclCommDestroy comm=2")

	n, err = c.Split(ctx, -3, 0, Config{})
	check(t, err)
	if n != nil {
		t.Errorf("a negative color made %v", n)
	}
	if calls := newCalls(t); len(calls) != 1 || !strings.HasPrefix(calls[0], "ncclCommSplit comm=1 color=-1 key=0 ") {
		t.Errorf("calls %q", calls)
	}
	for _, op := range []string{"ncclCommUserRank", "ncclCommCount"} {
		fail(t, op+"=4")
		_, err = c.Split(ctx, 0, 0, Config{})
		wantError(t, err, op, ErrInvalidArgument)
		if calls := newCalls(t); !strings.HasPrefix(calls[len(calls)-1], "ncclCommAbort") {
			t.Errorf("calls %q, want the child aborted", calls)
		}
	}
	fail(t, "ncclCommSplit=5")
	_, err = c.Split(ctx, 0, 0, Config{})
	wantError(t, err, "ncclCommSplit", ErrInvalidUsage, "rank 5: ")
	check(t, c.Close())
}

func TestSplitDeadline(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, _ := device(t)
	c := initComm(t, d, 0, 4, Config{NonBlocking: true})
	n, err := c.Split(context.Background(), 0, 0, Config{})
	check(t, err)
	if n.cfg.NonBlocking != true {
		t.Error("the child of a non-blocking communicator blocks")
	}
	check(t, n.Close())
	newCalls(t)

	release := hang(t, "ncclCommSplit")
	_, err = c.Split(deadline(t), 0, 0, Config{})
	wantError(t, err, "ncclCommSplit", context.DeadlineExceeded, "waited 0.", "a communicator of 4")
	check(t, c.Close())
	if calls := newCalls(t); len(calls) != 2 || !strings.HasPrefix(calls[1], "ncclCommAbort comm=1") {
		t.Errorf("calls %q, want an abort", calls)
	}
	release()

	c = initComm(t, d, 0, 4, Config{})
	release = hang(t, "ncclCommSplit")
	_, err = c.Split(deadline(t), 0, 0, Config{})
	wantError(t, err, "ncclCommSplit", context.DeadlineExceeded, "waited 0.")
	wantError(t, c.Abort(), "ncclCommAbort", ErrInvalidUsage, "left to the end of the process")
	newCalls(t)
	release()
	eventually(t, "ncclCommAbort") // of the child, which nobody takes
}

// TestNonBlocking sees every call wait until NCCL's thread is done: the double refuses a call
// before.
func TestNonBlocking(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	d, s := device(t)
	c := initComm(t, d, 0, 1, Config{NonBlocking: true})
	for range 3 {
		check(t, c.AllReduce(s, nil, nil, 0, elem.Int8, elem.Sum))
	}
	check(t, c.Group(s, []GroupCall{{Kind: Send}, {Kind: Recv}}))
	check(t, c.AllReduce(s, nil, nil, 0, elem.Int8, elem.Sum))
	fail(t, "async=2")
	wantError(t, c.AllReduce(s, nil, nil, 0, elem.Int8, elem.Sum), "ncclAllReduce", ErrSystem)
	fail(t, "")
	check(t, c.Close())

	c = initComm(t, d, 0, 1, Config{NonBlocking: true})
	hang(t, "ncclAllReduce")
	done := make(chan error)
	go func() { done <- c.AllReduce(s, nil, nil, 0, elem.Int8, elem.Sum) }()
	eventually(t, "ncclAllReduce")
	check(t, c.AsyncError())
	check(t, c.Abort()) // ends the call on the other goroutine
	wantError(t, <-done, "ncclAllReduce", ErrInvalidUsage, "closed")
	wantCalls(t, "ncclCommAbort comm=2")
}

// TestContext sees the failure to make the context current, in the driver's terms.
func TestContext(t *testing.T) {
	if !(double{}).in(t) {
		return
	}
	c, s := comm(t, 0, 2)
	t.Setenv("FAKECUDA_FAIL", "cuCtxGetCurrent=201,cuCtxSetCurrent=201")
	err := c.AllReduce(s, addr(0x8000), addr(0x8000), 1, elem.Float32, elem.Sum)
	wantError(t, err, "cuCtxSetCurrent", cuda.Result(201), "rank 0: ")
	wantError(t, c.Group(s, []GroupCall{{Kind: Send}, {Kind: Recv}}), "cuCtxSetCurrent", cuda.Result(201))
	_, err = MemAlloc(c.Device(), 8)
	wantError(t, err, "cuCtxSetCurrent", cuda.Result(201))
	wantCalls(t)
}
