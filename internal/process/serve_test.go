package process

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

// patience bounds every wait of a test, and measures nothing.
const patience = 10 * time.Minute // only a hang takes so long

// nobody is a user that runs no tests.
const nobody = 65534

// asNobody calls fn as another user, which only root can become.
func asNobody(t *testing.T, fn func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	failed := make(chan error, 1)
	go func() {
		// The lock stays: the thread ends with the goroutine.
		runtime.LockOSThread()
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 { // only this thread
			failed <- e
			return
		}
		fn()
		failed <- nil
	}()
	testkit.Must(t, <-failed)
}

// counted is a listener that counts the open connections, and first fails to accept a few times.
type counted struct {
	net.Listener
	open, most, fail, read atomic.Int32
}

type countedConn struct {
	*net.UnixConn
	ln     *counted
	closed atomic.Bool
}

func (l *counted) Accept() (net.Conn, error) {
	if l.fail.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := l.open.Add(1)
	for m := l.most.Load(); n > m && !l.most.CompareAndSwap(m, n); m = l.most.Load() {
	}
	return &countedConn{UnixConn: conn.(*net.UnixConn), ln: l}, nil
}

func (c *countedConn) Read(p []byte) (int, error) {
	c.ln.read.Add(1)
	return c.UnixConn.Read(p)
}

func (c *countedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.ln.open.Add(-1)
	}
	return c.UnixConn.Close()
}

// serve answers as the process of a number that no process has.
func serve(t *testing.T, pid int, answer func(string) string) *counted {
	t.Helper()
	ln, err := net.Listen("unix", RankAddress(pid))
	testkit.Must(t, err)
	l := &counted{Listener: ln}
	ended := make(chan struct{})
	go func() {
		Serve(l, answer)
		close(ended)
	}()
	t.Cleanup(func() {
		l.Close()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Serve goes on when its listener is closed")
		}
	})
	return l
}

// silent opens connections that say nothing, and returns them.
func silent(t *testing.T, pid, n int) (conns []net.Conn) {
	for range n {
		conn, err := net.DialTimeout("unix", RankAddress(pid), patience)
		if err != nil {
			t.Error(err)
			break
		}
		conn.SetDeadline(time.Now().Add(patience))
		conns = append(conns, conn)
	}
	return conns
}

const unused = 1 << 30 // more than a process number can be

func TestStrangersAreSentAway(t *testing.T) {
	l := serve(t, unused, func(string) string { return "a secret" })
	asNobody(t, func() {
		for _, conn := range silent(t, unused, 1100) { // none of them sends a byte
			if b, err := io.ReadAll(conn); len(b) > 0 || err != nil {
				t.Errorf("a stranger reads %q, %v", b, err)
			}
			conn.Close()
		}
	})
	if l.read.Load() != 0 {
		t.Error("what strangers send is read")
	}
	if most := l.most.Load(); most > maxCallers {
		t.Errorf("%d connections at a time", most)
	}
}

// The user's own silent connections hold few descriptors, and not for long.
func TestSilentCallers(t *testing.T) {
	l := serve(t, unused, func(string) string { return "well" })
	conns := silent(t, unused, 3*maxCallers)
	for _, conn := range conns {
		defer conn.Close()
	}
	b, uid, err := Ask(unused, RequestText, patience)
	if string(b) != "well" || uid != os.Getuid() || err != nil {
		t.Errorf("behind silent connections: %q, user %d, %v", b, uid, err)
	}
	for _, conn := range conns {
		if b, err := io.ReadAll(conn); len(b) > 0 || err != nil {
			t.Errorf("who asks nothing reads %q, %v", b, err)
		}
	}
	if most := l.most.Load(); most > maxCallers {
		t.Errorf("%d connections at a time", most)
	}
}

func TestAcceptAgain(t *testing.T) {
	ln, err := net.Listen("unix", RankAddress(unused))
	testkit.Must(t, err)
	l := &counted{Listener: ln}
	l.fail.Store(5)
	go Serve(l, func(string) string { return "well" })
	defer l.Close()
	if b, _, err := Ask(unused, RequestText, patience); string(b) != "well" || err != nil {
		t.Errorf("after 5 failures to accept: %q, %v", b, err)
	}
}

// A process that takes another's name is not believed, and not even asked.
func TestImpostor(t *testing.T) {
	var ln net.Listener
	var err error
	asNobody(t, func() { ln, err = net.Listen("unix", RankAddress(unused)) }) // its user is the listening thread's
	testkit.Must(t, err)
	defer ln.Close()
	asked := make(chan int, 1)
	go func() {
		n := 0
		if conn, err := ln.Accept(); err == nil {
			n, _ = conn.Read(make([]byte, 1))
			conn.Close()
		}
		asked <- n
	}()
	_, err = AskWho(unused, patience)
	want := fmt.Sprintf("process %d of user %d holds its name", os.Getpid(), nobody)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an impostor is believed: %v, want %q", err, want)
	}
	if <-asked != 0 {
		t.Error("an impostor is asked")
	}
}

// A process's words about itself are shown as text, and count only for itself.
func TestWho(t *testing.T) {
	says := ""
	serve(t, unused, func(string) string { return says })
	says = fmt.Sprintf(`{"job":"a\u001b[2J","program":"b\nc","phase":"\u009bd\u202e","pid":%d,"uid":77}`, unused)
	r, err := AskWho(unused, patience)
	if r.Job != `a\x1b[2J` || r.Program != `b\nc` || r.Phase != `\u009bd\u202e` || r.UID != os.Getuid() || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	for _, says = range []string{`{"pid":1}`, "{", "no JSON"} {
		if r, err := AskWho(unused, patience); err == nil {
			t.Errorf("%s: %+v", says, r)
		}
	}
}

func TestBelieve(t *testing.T) {
	me := uint32(os.Getuid())
	own := int32(os.Getpid())
	for _, tc := range []struct {
		peer unix.Ucred
		pid  int
		root bool // believes it
		user bool
	}{
		{unix.Ucred{Pid: own, Uid: me}, unused, true, true},
		{unix.Ucred{Pid: own, Uid: me + 1}, int(own), true, false},
		{unix.Ucred{Pid: own, Uid: me + 1}, unused, false, false},
		{unix.Ucred{Pid: 0, Uid: me + 1}, unused, false, false}, // in a namespace that this one does not see
	} {
		want := tc.user
		if me == 0 {
			want = tc.root
		}
		if err := believe(&tc.peer, tc.pid); (err == nil) != want {
			t.Errorf("%+v as process %d: %v", tc.peer, tc.pid, err)
		}
	}
	if got := numbers("Name:\tx\nNSpid:\t4711\t12\t1\nNSpgid:\t8\n"); !slices.Equal(got, []int{4711, 12, 1}) {
		t.Errorf("numbers: %v", got)
	}
}

// Listen tells a name that another process holds from other failures.
func TestListenTaken(t *testing.T) {
	ln, err := Listen()
	testkit.Must(t, err)
	defer ln.Close()
	if _, err := Listen(); err == nil || !strings.Contains(err.Error(), "another process holds the name") {
		t.Errorf("%v", err)
	}
}
