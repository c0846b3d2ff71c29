package watch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/testkit"
)

// A crowd of strangers, before and while the last rank joins, gets nothing. It disturbs neither the
// ranks that are there nor the one that comes.
func TestStrangers(t *testing.T) {
	const crowd = 1000
	kinds := map[string]func(c net.Conn){
		"garbage":   func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"+strings.Repeat("x", 1<<16)) },
		"half-open": func(c net.Conn) { io.WriteString(c, magic[:c.LocalAddr().(*net.TCPAddr).Port%(len(magic)+1)]) },
		"wrong key": func(c net.Conn) {
			if greet(c, &[32]byte{1}, 2, 0) == nil {
				t.Error("welcome with a wrong key")
			}
		},
		"gone": func(c net.Conn) { c.Close() },
		"slow": func(c net.Conn) {
			for _, b := range []byte(magic + strings.Repeat("y", 100)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		},
	}
	for name, act := range kinds {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 4)
			j.join(0, 1, 2)
			addr := j.base.Hubs[0][0]
			var wg, here sync.WaitGroup
			here.Add(crowd)
			for range crowd {
				wg.Go(func() {
					c, err := net.Dial("tcp", addr)
					here.Done()
					if err != nil {
						return // rank 3 has joined, and the hub listens no more
					}
					defer c.Close()
					act(c)
					c.SetReadDeadline(time.Now().Add(patience))
					b, err := io.ReadAll(c)
					if len(b) > 0 {
						t.Errorf("a stranger got %d bytes", len(b))
					}
					if errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("a stranger was kept")
					}
				})
			}
			here.Wait()
			g := j.nets[0].hub.gate
			g.mu.Lock()
			if n := len(g.guests); n > maxGuests {
				t.Errorf("%d strangers at a time", n)
			}
			g.mu.Unlock()
			for rank, s := range j.nets[2].Report(t.Context())[:3] {
				if s.State == nil || s.Silent || s.Died {
					t.Errorf("rank %d: %+v", rank, s)
				}
			}
			j.join(3)
			wg.Wait()
			if s := j.nets[3].Report(t.Context())[0]; s.State == nil {
				t.Errorf("%+v", s)
			}
			j.noEnd()
			if _, err := net.Dial("tcp", addr); err == nil {
				t.Error("the hub listens when all ranks have joined")
			}
		})
	}
}

// Thousands of idle connections, opened before the last rank comes, do not keep it from the hub.
func TestIdleCrowd(t *testing.T) {
	const crowd = 9000
	var files unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	if files.Cur < crowd+2*maxGuests {
		t.Skipf("%d descriptors, and as many connections are to be opened", files.Cur)
	}
	j := newJob(t, 4)
	j.join(0, 1, 2)
	addr, err := net.ResolveTCPAddr("tcp", j.base.Hubs[0][0])
	testkit.Must(t, err)
	fds := make([]int, crowd)
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	to := &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	for i := range fds { // all before the rank, even if the kernel has not taken them up yet
		fds[i], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		testkit.Must(t, err)
		if err := unix.Connect(fds[i], to); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
	}
	j.join(3)
	if s := j.nets[3].Report(t.Context())[0]; s.State == nil {
		t.Errorf("%+v", s)
	}
	j.noEnd()
}

// tap is a connection that keeps what is written.
type tap struct {
	net.Conn
	wrote bytes.Buffer
}

func (t *tap) Write(b []byte) (int, error) {
	t.wrote.Write(b)
	return t.Conn.Write(b)
}

func TestHandshake(t *testing.T) {
	key := &[32]byte{1, 2, 3}
	shake := func(t *testing.T, client func(c *tap) error, hub int) (rank int, sent []byte, cerr, herr error) {
		a, b := net.Pipe()
		deadline := time.Now().Add(patience)
		a.SetDeadline(deadline)
		b.SetDeadline(deadline)
		c := &tap{Conn: a}
		done := make(chan error, 1)
		go func() {
			done <- client(c)
			a.Close()
		}()
		rank, herr = welcome(b, key, hub, 4)
		b.Close()
		cerr = <-done
		return rank, c.wrote.Bytes(), cerr, herr
	}
	rank, sent, cerr, herr := shake(t, func(c *tap) error { return greet(c, key, 3, 1) }, 1)
	if rank != 3 || cerr != nil || herr != nil {
		t.Fatalf("rank %d, %v, %v", rank, cerr, herr)
	}
	if len(sent) != introBytes+64 {
		t.Fatalf("%d bytes", len(sent))
	}
	for name, client := range map[string]func(c *tap) error{
		"wrong key":       func(c *tap) error { return greet(c, &[32]byte{9}, 3, 1) },
		"rank too large":  func(c *tap) error { return greet(c, key, 4, 1) },
		"negative rank":   func(c *tap) error { return greet(c, key, -1, 1) },
		"another hub":     func(c *tap) error { return greet(c, key, 3, 0) },
		"recorded before": func(c *tap) error { go io.Copy(io.Discard, c); c.Write(sent); return io.EOF },
		"another rank's name": func(c *tap) error {
			b := bytes.Clone(sent)
			binary.BigEndian.PutUint32(b[len(magic):], 2)
			c.Write(b)
			return io.EOF
		},
	} {
		if _, _, cerr, herr := shake(t, client, 1); cerr == nil || herr == nil {
			t.Errorf("%s: %v, %v", name, cerr, herr)
		}
	}
	for i := range sent { // any other byte
		b := bytes.Clone(sent)
		b[i] ^= 0x40
		if _, _, _, herr := shake(t, func(c *tap) error { go io.Copy(io.Discard, c); c.Write(b); return nil },
			1); herr == nil {
			t.Errorf("byte %d changed: welcome", i)
		}
	}

	// A rank believes neither a hub without the key nor its own proofs.
	for name, hub := range map[string]func(b net.Conn){
		"wrong key": func(b net.Conn) { welcome(b, &[32]byte{9}, 1, 4) },
		"noise":     func(b net.Conn) { io.CopyN(io.Discard, b, int64(introBytes+32)); b.Write(make([]byte, 64)) },
		"mirror":    func(b net.Conn) { m := make([]byte, introBytes+32); io.ReadFull(b, m); b.Write(m[len(m)-64:]) },
	} {
		a, b := net.Pipe()
		go func() { hub(b); b.Close() }()
		if err := greet(a, key, 3, 1); err == nil {
			t.Errorf("%s: believed", name)
		}
		a.Close()
	}
}

// Bytes that are no message, from a rank of the job, end the job with that reason.
func TestBadMessage(t *testing.T) {
	for name, bytes := range map[string]string{"no JSON": "\x00\x00\x00\x01{", "too long": "\x7f\xff\xff\xff"} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 3)
			j.join(0, 1)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn, err := dial(ctx, &j.base.Key, 2, 0, j.base.Hubs[0])
			testkit.Must(t, err)
			defer conn.Close()
			me := j.config(2).Me
			f, err := frame(message{Kind: msgJoin, Hello: &me})
			testkit.Must(t, err)
			conn.Write(f)
			io.WriteString(conn, bytes)
			if c := j.end(0); c.Rank != 2 || c.Kind != KindError || !strings.Contains(c.Text, "bad message") {
				t.Errorf("%+v", c)
			}
		})
	}
}

// No frame of a rank of the job makes the hub fail.
func FuzzHandle(f *testing.F) {
	f.Add([]byte(`{"k":"fail"}`))
	f.Add([]byte(`{"k":"state","state":{"a":1}}`))
	f.Add([]byte(`{"k":"procs","procs":{"-1":"T","9":"S","0":"R"}}`))
	f.Add([]byte(`{"k":"rank","rank":{"rank":77}}`))
	f.Add([]byte(`{"k":"ack","of":"bye"}`))
	f.Add([]byte(`{"k":"cause","cause":{"rank":-5,"pid":0}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<12 {
			return
		}
		m, err := readMessage(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)))
		if err != nil {
			return
		}
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		cfg := Config{Size: 2, standIn: time.Hour}
		h := &hub{cfg: &cfg, gate: newGate(2), changed: make(chan struct{}), done: make(chan struct{}),
			members: make([]*member, 2), ln: &Listener{}}
		h.members[1] = &member{Hello: Hello{Rank: 1}, line: newLine(far, nil, 2), reporting: true}
		h.gather = &gather{waiting: map[int]bool{1: true}, states: make([]RankState, 2), looks: 1}
		h.handle(h.members[1], m)
		h.close()
		n := &Net{cfg: cfg, done: make(chan struct{}), ended: make(chan struct{})}
		k := &link{line: newLine(near, bufio.NewReader(near), 2), bye: make(chan struct{})}
		k.report = &report{states: make([]RankState, 2), begun: make(chan struct{}), whole: make(chan struct{})}
		k.line.close()
		n.handle(k, m)
		n.handle(k, m)
		n.wg.Wait()
	})
}

// Reading takes no more memory than there are bytes, and a read message can be sent again.
func FuzzReadMessage(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x7f\xff\xff\xff{}"))
	f.Add([]byte("\x00\x00\x00\x05{\"k\"}"))
	good, err := frame(message{Kind: msgState, State: []byte(`{"a":"<>"}`)})
	testkit.Must(f, err)
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := frame(m)
		testkit.Must(t, err)
		if _, err := readMessage(bytes.NewReader(again)); err != nil {
			t.Fatal(err)
		}
	})
}

// A stranger's bytes are neither welcome nor answered.
func FuzzWelcome(f *testing.F) {
	f.Add([]byte(magic))
	f.Add([]byte(magic + strings.Repeat("\x00", introBytes+64)))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var answer bytes.Buffer
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), &answer}
		if _, err := welcome(conn, &[32]byte{1}, 0, 2); err == nil || answer.Len() > 0 {
			t.Errorf("%v, %d bytes of answer", err, answer.Len())
		}
	})
}

func TestPIDNamespace(t *testing.T) {
	if _, err := os.Stat("/proc/self/ns/pid"); err == nil && pidNamespace() == "" {
		t.Error("no PID namespace")
	}
}

// All ranks of a large job have a place at once, as far as there are descriptors.
func TestRoomForRanks(t *testing.T) {
	var files unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	few := newGate(2).size
	if few > maxGuests || few < minGuests {
		t.Errorf("%d places for strangers", few)
	}
	if ranks := few + 1; files.Cur > uint64(2*ranks+spareFiles) && newGate(ranks).size != ranks {
		t.Errorf("%d places for %d ranks", newGate(ranks).size, ranks)
	}
	if most := newGate(int(min(files.Cur, 1<<20))).size; most > int(min(files.Cur, 1<<20)) {
		t.Errorf("%d places with %d descriptors", most, files.Cur)
	}
}
