package watch

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

func TestListen(t *testing.T) {
	l, err := Listen(Loopback)
	testkit.Must(t, err)
	defer l.Close()
	if a := l.Addrs(); len(a) != 1 || !strings.HasPrefix(a[0], "127.0.0.1:") {
		t.Errorf("%q", a)
	}
	ips, err := addresses()
	testkit.Must(t, err)
	if len(ips) == 0 {
		t.Skip("no network interface but the loopback")
	}
	j := newJob(t, 3)
	for i := range 2 {
		j.lns[i].Close()
		if j.lns[i], err = Listen(EveryAddress); err != nil {
			t.Fatal(err)
		}
		// An address with another machine, or nobody, at the other end must
		// not keep a rank from the next.
		j.base.Hubs[i] = append([]string{"127.0.0.1:1", j.base.Hubs[0][0]}, j.lns[i].Addrs()...)
	}
	for _, a := range j.lns[0].Addrs() {
		host, _, err := net.SplitHostPort(a)
		if err != nil || net.ParseIP(host).IsLoopback() || net.ParseIP(host).IsUnspecified() {
			t.Errorf("%q", a)
		}
	}
	j.join(0, 1, 2)
	j.nets[2].Fail(Cause{Kind: KindError})
	j.end(0)
}

// A host that cannot be reached is told from a rank that died, with all ranks on it.
func TestCut(t *testing.T) {
	now := time.Now()
	on := func(rank int, host string, heard time.Time, left bool) *member {
		return &member{Hello: Hello{Rank: rank, Host: host, PID: 100 + rank}, heard: heard, left: left}
	}
	long := now.Add(-time.Minute)
	h := &hub{cfg: &Config{Me: Hello{Rank: 0, Host: "a"}}, members: []*member{
		on(0, "a", now, false), on(1, "a", long, true), on(2, "b", long, false), on(3, "b", long, false), nil,
	}}
	for _, tc := range []struct {
		err  error
		kind string
		text string
	}{
		{&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}, KindCut,
			"ranks 2-3 on b cannot be reached from rank 0 on a: no acknowledgement for 30s"},
		{os.NewSyscallError("write", syscall.EHOSTUNREACH), KindCut,
			"ranks 2-3 on b cannot be reached from rank 0 on a"},
		{io.EOF, KindDied, "the process ended without a word"},
		{syscall.ECONNRESET, KindDied, "the process ended without a word"},
		{badMessage("x"), KindError, "bad message"},
	} {
		c := h.causeOf(h.members[3], tc.err)
		if c.Hello != h.members[3].Hello || c.Kind != tc.kind || !strings.HasPrefix(c.Text, tc.text) {
			t.Errorf("%v: %+v", tc.err, c)
		}
	}
}

// Cut links end by the kernel's clock.
func TestSocketOptions(t *testing.T) {
	j := startJob(t, 2)
	for _, conn := range []net.Conn{j.nets[1].links[0].line.conn, j.nets[0].hub.members[1].line.conn} {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		testkit.Must(t, err)
		raw.Control(func(fd uintptr) {
			ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			if err != nil || ms != 30000 {
				t.Errorf("TCP_USER_TIMEOUT %d, %v", ms, err)
			}
			if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on != 1 {
				t.Errorf("SO_KEEPALIVE %d, %v", on, err)
			}
		})
	}
}

// A hub that has too few descriptors for all ranks says so at once, and how many it needs.
func TestTooFewFiles(t *testing.T) {
	var files unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	if files.Cur > 1<<24 {
		t.Skip("there is no limit")
	}
	cfg := Config{Size: int(files.Cur), Key: [32]byte{1}, Hubs: make([][]string, 2)}
	for rank, want := range map[int]string{
		0: fmt.Sprintf("ulimit -n is %d here: raise it to ", files.Cur), 1: "rank 1 keeps a connection to each of",
		2: "",
	} {
		c := cfg
		c.Me.Rank = rank
		if rank < 2 {
			l, err := Listen(Loopback)
			testkit.Must(t, err)
			defer l.Close()
			c.Listener = l
		}
		err := c.check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("rank %d: %v, want %q", rank, err, want)
		}
	}
	cfg.Size, cfg.Me.Rank = 600, 2
	if err := cfg.check(); err != nil || cfg.Beat != 2*defaultBeat {
		t.Errorf("%v; a beat each %v", err, cfg.Beat)
	}
}
