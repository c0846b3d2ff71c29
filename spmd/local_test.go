package spmd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/spmdtest"
)

// Each rank has a World of its own, and all know the same job.
func TestLocal(t *testing.T) {
	var seen atomic.Int64
	spmdtest.RunInProcess(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		seen.Add(1 << (8 * w.Rank()))
		if w.LocalRank() != w.Rank() || w.LocalSize() != w.Size() || w.Nodes() != 1 || !w.OnHost() ||
			w.Collectives() != "inproc" {
			t.Errorf("rank %d of %d: local %d of %d, %d nodes, device %s, collectives %s", w.Rank(),
				w.Size(), w.LocalRank(), w.LocalSize(), w.Nodes(), w.Device(), w.Collectives())
		}
	})
	if got := seen.Load(); got != 0x01020304 && !t.Failed() {
		t.Errorf("ranks that ran: %#x", got)
	}
}

// A rank that fails, panics or returns ends all, in whatever call the others wait, and is named.
func TestLocalFailures(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	mine := errors.New("of my own")
	ends := map[string]struct {
		end  func(ctx context.Context, w *spmd.World) error
		want string
	}{
		"fails":  {func(context.Context, *spmd.World) error { return mine }, "rank 1: of my own"},
		"panics": {func(context.Context, *spmd.World) error { panic("oh") }, "rank 1: panic: oh"},
		"returns": {func(context.Context, *spmd.World) error { return nil },
			"rank 1 has returned from the program, and is waited for"},
		"fails in a stream": {func(ctx context.Context, w *spmd.World) error {
			s, err := w.NewStream("failing")
			if err != nil {
				return err
			}
			if err := s.HostFunc(func() error { return mine }); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}, "rank 1: stream \"failing\", command enqueued at spmd/local_test.go:"},
	}
	waits := map[string]func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error{
		"barrier": func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error { return spmd.Barrier(w.Comm()) },
		"long": func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error {
			return spmd.AllReduce(w.Comm(), x, x, spmd.Max)
		},
		"message": func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error { return spmd.Recv(w.Comm(), x, 1) },
		"split": func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error {
			_, err := w.Comm().Split(0, 0)
			return err
		},
		"agreement": func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error { return w.Watch() },
		"stream": func(w *spmd.World, x spmd.Buffer[int32], s *spmd.Stream) error {
			if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
				return err
			}
			return s.Synchronize()
		},
	}
	for end, e := range ends {
		for wait, call := range waits {
			t.Run(end+" "+wait, func(t *testing.T) {
				var told [3]error
				err := spmd.Local(t.Context(), spmdtest.Config(), 3, func(ctx context.Context, w *spmd.World) error {
					x, err := spmd.Alloc[int32](w, 5000)
					if err != nil {
						return err
					}
					s, err := w.NewStream("s")
					if err != nil {
						return err
					}
					if w.Rank() == 1 {
						return e.end(ctx, w)
					}
					told[w.Rank()] = call(w, x, s)
					return told[w.Rank()]
				})
				if err == nil || !strings.Contains(err.Error(), e.want) {
					t.Errorf("%v, want %q", err, e.want)
				}
				if (strings.HasPrefix(end, "fails")) != errors.Is(err, mine) {
					t.Errorf("%v is not what the rank returned", err)
				}
				for _, r := range []int{0, 2} {
					if told[r] == nil || !strings.Contains(told[r].Error(), "rank ") {
						t.Errorf("rank %d has learned %v", r, told[r])
					}
				}
			})
		}
	}
}

// A rank that is refused a call of all ranks, and goes on without it, ends those that wait in it
// with the refusal as the cause: whether it makes another call or none.
func TestRefusedAlone(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	every := append(everyCall(2), calling{coll.Split, func(c spmd.Comm, _, _ floats, _ int) error {
		_, err := c.Split(0, 0)
		return err
	}}, calling{coll.Group, func(c spmd.Comm, d, s floats, _ int) error {
		return c.Group(func() error { return spmd.AllReduce(c, d, s, spmd.Max) })
	}}, calling{coll.AllGatherValue, func(c spmd.Comm, _, _ floats, _ int) error {
		_, err := hostdata.AllGather(c, "text")
		return err
	}}, calling{coll.Broadcast, func(c spmd.Comm, _, _ floats, root int) error {
		_, err := hostdata.Broadcast(c, 7, root)
		return err
	}})
	var all sync.WaitGroup
	defer all.Wait()
	for i, call := range append(every, every...) {
		if call.kind.Traits().Message {
			continue
		}
		want := fmt.Sprintf("rank 1 was refused %v, and goes on without it: ", call.kind)
		if i < len(every) {
			want = fmt.Sprintf("; rank 1 was refused %v before: ", call.kind)
		}
		all.Go(func() {
			err := spmd.Local(t.Context(), spmdtest.Config(), 3, func(ctx context.Context, w *spmd.World) error {
				dst, err := spmd.Alloc[float32](w, 6)
				if err != nil {
					return err
				}
				src, err := spmd.Alloc[float32](w, 6)
				if err != nil {
					return err
				}
				one := func() error { return call.do(w.Comm(), dst, src, 0) }
				if err := one(); err != nil || w.Rank() != 1 {
					return errors.Join(err, one(), spmd.Barrier(w.Comm()))
				}
				s, err := w.NewStream("s")
				if err == nil {
					_, err = s.Capture(one)
				}
				if err == nil {
					return errors.New("nothing is refused")
				}
				if i < len(every) {
					return spmd.ReduceScatter(w.Comm(), src.Slice(0, 1), dst.Slice(0, 3), spmd.Min)
				}
				<-ctx.Done()
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "ways_test.go:") &&
				!strings.Contains(err.Error(), "local_test.go:") {
				t.Errorf("%v, want %q, and where", err, want)
			}
		})
	}
}

// Ranks that wait for each other, and one that never comes, are reported with every rank's state.
func TestLocalHangs(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	end := make(chan struct{})
	defer close(end)
	for name, tc := range map[string]struct {
		timeout time.Duration
		run     func(w *spmd.World, x spmd.Buffer[int32]) error
		want    []string
	}{
		"never comes": {time.Second, func(w *spmd.World, x spmd.Buffer[int32]) error {
			if w.Rank() == 0 {
				<-end
			}
			return spmd.Barrier(w.Comm())
		}, []string{"this job hangs: ", "Barrier", "NOT ARRIVED: rank 0", "local_test.go"}},
		"in a circle": {time.Hour, func(w *spmd.World, x spmd.Buffer[int32]) error {
			return spmd.Recv(w.Comm(), x, (w.Rank()+1)%w.Size())
		}, []string{"this job hangs: the ranks wait for each other", "rank 0 is in Recv", "rank 2 is in Recv"}},
		"call different things": {time.Hour, func(w *spmd.World, x spmd.Buffer[int32]) error {
			if w.Rank() == 2 {
				return spmd.AllReduce(w.Comm(), x, x, spmd.Min)
			}
			return spmd.AllReduce(w.Comm(), x, x, spmd.Max)
		}, []string{"different", "AllReduce of 7 int32"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := spmdtest.Config()
			cfg.Timeout = tc.timeout
			err := spmd.Local(t.Context(), cfg, 3, func(_ context.Context, w *spmd.World) error {
				x, err := spmd.Alloc[int32](w, 7)
				if err != nil {
					return err
				}
				return tc.run(w, x)
			})
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %v", want, err)
				}
			}
		})
	}
}

// Ranks that wait for one another learn that the caller has ended its context, and the cause is
// said.
func TestLocalCancelled(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "the ranks are goroutines")
	mine := errors.New("the caller has had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var told sync.WaitGroup
	told.Add(2)
	err := spmd.Local(ctx, spmdtest.Config(), 3, func(_ context.Context, w *spmd.World) error {
		if w.Rank() == 2 {
			cancel(mine)
			told.Wait() // and not for ctx
			return nil
		}
		defer told.Done()
		err := spmd.Barrier(w.Comm())
		if !errors.Is(err, mine) {
			t.Errorf("rank %d has learned %v", w.Rank(), err)
		}
		return err
	})
	if !errors.Is(err, mine) || !strings.Contains(err.Error(), "some ranks have not returned in 5s") {
		t.Errorf("Local returns %v", err)
	}
}

// Jobs of several ranks run at the same time in one process, and leave it the cores that it had.
func TestLocalJobsBesideEachOther(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines")
	threads := host.Threads()
	errs := make(chan error)
	for n := 1; n <= 4; n++ {
		go func() {
			errs <- spmd.Local(t.Context(), spmdtest.Config(), n, func(_ context.Context, w *spmd.World) error {
				for i := range 50 {
					got, err := sumOfRanks(w, i)
					if err != nil {
						return err
					}
					if want := n*(n-1)/2 + n*i; got != want {
						return fmt.Errorf("%d ranks: sum %d, want %d", n, got, want)
					}
				}
				return nil
			})
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := host.Threads(); n < threads { // more if ranks that tests before have left behind are gone by now
		t.Errorf("%d threads after the jobs, %d before", n, threads)
	}
}

func sumOfRanks(w *spmd.World, more int) (int, error) {
	x, err := spmd.Alloc[int64](w, 1)
	if err != nil {
		return 0, err
	}
	defer x.Free()
	if err := x.CopyFrom([]int64{int64(w.Rank() + more)}); err != nil {
		return 0, err
	}
	err = spmd.AllReduce(w.Comm(), x, x, spmd.Sum)
	return int(x.At(0)), err
}

// --ranks is a job of so many ranks without mpirun: one start line, one file of results, and the
// ends of any job.
func TestRanksFlag(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "the ranks are goroutines")
	file := filepath.Join(t.TempDir(), "out.json")
	for _, tc := range []struct {
		what   string
		ranks  string
		args   []string
		status int
		want   []string
		lines  int // of all that it says; 0 for any number
	}{
		{"sum", "3", []string{"--json", file, "--log-format", "json"}, 0,
			[]string{`"ranks":3`, `"collectives":"inproc"`, `"launcher":"none"`, `"device":"host"`,
				`"rank":0`, `"message":"done"`}, 2},
		{"sum", "3", []string{"--log-ranks", "all", "--check"}, 0,
			[]string{"start", "done sum=3 rank=0", "done sum=3 rank=1", "done sum=3 rank=2"}, 4},
		{"usage", "3", nil, 2, []string{"app: no such data"}, 0},
		{"sum", "5", nil, 2, []string{"app: --rows 4: fewer than the 5 ranks"}, 1},
		{"sum", "0", nil, 2, []string{"app: --ranks 0: want 1 to 1024"}, 1},
		{"sum", "-1", nil, 2, []string{"app: --ranks -1: want 1 to 1024"}, 1},
		{"sum", "2", []string{"--collectives", "mpi"}, 2,
			[]string{"app: --collectives mpi does not go with --ranks 2: "}, 1},
		{"fault raise", "3", nil, 1, []string{"rank=1", "panic: out of order", "goroutine ", "local_test.go"}, 0},
		{"fault returns", "3", nil, 1, []string{"rank 1 has returned from the program, and is waited for", "host="}, 0},
		{"fault exits", "3", nil, 1, []string{"ERR the program has ended its goroutine (runtime.Goexit)", "rank=1"}, 0},
		{"fault waits", "2", []string{"--timeout", "1s"}, 1,
			[]string{"--- this job hangs: ", "NOT ARRIVED: rank 1",
				"ERR this job hangs: Barrier on \"world\" has not ended in "}, 0},
	} {
		status, out := run(t, 0, tc.what, nil, append([]string{"--ranks", tc.ranks}, tc.args...)...)
		if status != tc.status || tc.lines > 0 && strings.Count(out, "\n") != tc.lines {
			t.Errorf("%s on %s ranks %v: status %d, want %d and %d lines\n%s", tc.what, tc.ranks, tc.args,
				status, tc.status, tc.lines, out)
		}
		for _, want := range tc.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s on %s ranks %v does not say %q:\n%s", tc.what, tc.ranks, tc.args, want, out)
			}
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "{\"app\":\"app\",\"ranks\":3,\"sum\":3}\n" {
		t.Errorf("written: %q, %v", b, err)
	}
}

// TestMemoryAfterFailure: ranks that compute together read each other's memory. It is there until
// all have returned, though another rank has failed.
func TestMemoryAfterFailure(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "the ranks are goroutines")
	for range 6 {
		status, out := run(t, 0, "one fails", nil, "--ranks", "3")
		if status != 1 || !strings.Contains(out, "ERR of my own") {
			t.Fatalf("status %d, and not the cause\n%s", status, out)
		}
	}
}

// After a failure ranks of one process, too, say where the time went.
func TestTraceAfterFailure(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "the ranks are goroutines")
	name := filepath.Join(t.TempDir(), "trace.json")
	status, out := run(t, 0, "one fails", nil, "--ranks", "3", "--trace", name, "--summary", "on")
	if status != 1 || strings.Count(out, "summary of 3 ranks in ") != 1 ||
		strings.LastIndex(out, "ERR of my own") < strings.LastIndex(out, "trace: ") {
		t.Errorf("status %d\n%s", status, out)
	}
	file := readTrace(t, name)
	for rank := range 2 {
		if file.count(func(e *traceEvent) bool { return *e.Pid == rank && e.Ph == "X" && e.Name == "AllReduce" }) == 0 {
			t.Errorf("no AllReduce of rank %d", rank)
		}
	}
}

// oneFails makes rank 2 fail while the others are in long calls of their own.
func oneFails(w *spmd.World) error {
	pair, err := w.Comm().Split(w.Rank()/2, 0)
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float32](w, 4<<20)
	if err != nil {
		return err
	}
	if w.Rank() == 2 {
		<-underWay
		return errors.New("of my own")
	}
	for i := 0; ; i++ {
		if err := spmd.AllReduce(pair, x, x, spmd.Max); err != nil {
			return err
		}
		if i == 0 && w.Rank() == 0 {
			close(underWay)
		}
	}
}

var underWay = make(chan struct{}) // the calls of oneFails

// A program that ends its goroutine ends the job, also if the ranks are processes.
func TestProgramGoexit(t *testing.T) {
	t.Parallel()
	spmdtest.Ranks(t, 2)
	status, out := run(t, 2, "fault exits", nil)
	if want := "ERR the program has ended its goroutine (runtime.Goexit)"; status != 1 || !strings.Contains(out, want) {
		t.Errorf("status %d, want 1 and %q\n%s", status, want, out)
	}
}

// localFaults are rank 1's acts while the others are in a barrier.
var localFaults = map[string]func(ctx context.Context, w *spmd.World) error{
	"raise":   func(context.Context, *spmd.World) error { panic("out of order") },
	"returns": func(context.Context, *spmd.World) error { return nil },
	"exits":   func(context.Context, *spmd.World) error { runtime.Goexit(); return nil },
	"waits":   func(ctx context.Context, _ *spmd.World) error { <-ctx.Done(); return nil },
	"dies":    func(context.Context, *spmd.World) error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) },
	// while the others are in a collective that nobody else has called
	"goes wrong": func(_ context.Context, w *spmd.World) error {
		x, err := spmd.Alloc[int32](w, 3)
		if err != nil {
			return err
		}
		return spmd.Broadcast(w.Comm(), x, w.Size()-1)
	},
}

// The first line of the log has at most two screens' widths. Why there is no GPU, and the versions
// of libraries, are for who asks.
func TestStartLine(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "a GPU has another name")
	for _, tc := range []struct {
		args  []string
		whole bool
	}{{nil, false}, {[]string{"--log-level", "debug"}, true}} {
		status, out := run(t, 0, "sum", nil, append(tc.args, "--ranks", "3", "--device", "auto")...)
		line, _, _ := strings.Cut(out, "\n")
		if status != 0 || !strings.Contains(line, " INF start launcher=none ranks=3 nodes=1 device=host ") ||
			len(line) > 160 != tc.whole {
			t.Errorf("%v: status %d, %d columns: %s", tc.args, status, len(line), line)
		}
		for _, part := range []string{"why=\"no GPU: ", " blas=", " startup_ms={"} {
			if strings.Contains(line, part) != tc.whole {
				t.Errorf("%v: %s", tc.args, line)
			}
		}
	}
}

// Ranks of a process that nobody has bound compute on cores of their own, unless that is switched
// off.
func TestRanksApart(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "ranks with GPUs compute there")
	first, _ := job.OwnCores("/sys", 0, 2)
	if first == "" {
		t.Skip("this process is bound, or there is one core only")
	}
	for _, tc := range []struct {
		word   string
		ranks  string
		status int
		want   string
		cores  bool
	}{
		{"", "2", 0, "cores=\"" + first + ", where the streams compute\"", true},
		{"", "1", 0, " start ", false},
		{"none", "2", 0, " start ", false},
		{"socket", "2", 2, "app: " + job.BindTo + "=socket: want core or none", false},
	} {
		status, out := run(t, 0, "sum", []string{job.BindTo + "=" + tc.word}, "--ranks", tc.ranks,
			"--log-level", "debug")
		if status != tc.status || !strings.Contains(out, tc.want) || strings.Contains(out, "cores=") != tc.cores {
			t.Errorf("%q, %s ranks: status %d, want %d and %q\n%s", tc.word, tc.ranks, status, tc.status, tc.want, out)
		}
	}
}
