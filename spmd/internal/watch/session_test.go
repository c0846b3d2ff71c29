package watch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// says writes a session to the other end of a connection after the handshake: each line of
// text as a message, and then raw bytes. It reads what comes back, and returns when the other
// side has ended.
func says(conn net.Conn, text, raw []byte) {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for r := bufio.NewReader(conn); ; {
			if _, err := readMessage(r); err != nil {
				return
			}
		}
	}()
	for line := range bytes.Lines(text) {
		f := append(binary.BigEndian.AppendUint32(nil, uint32(len(line))), line...)
		if _, err := conn.Write(f); err != nil {
			break
		}
	}
	_, _ = conn.Write(raw) // the other side may have had enough
	conn.Close()
	<-heard
}

// ends fails the test if a goroutine of it goes on.
func ends(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not end", what)
	}
}

// Whatever a rank says after the handshake, the hub goes on and answers the others.
func FuzzHubSession(f *testing.F) {
	f.Add([]byte(`{"rank":1,"pid":-1,"host":"h"}`),
		[]byte("{\"k\":\"beat\",\"state\":[1]}\n{\"k\":\"report\"}\n{\"k\":\"state\",\"state\":{}}\n"), []byte(nil))
	f.Add([]byte(`{}`), []byte("{\"k\":\"fail\",\"cause\":{\"rank\":2,\"kind\":\"died\"}}\n"+
		"{\"k\":\"ack\",\"of\":\"cause\"}\n{\"k\":\"bye\"}\n"), []byte("\x00\x00"))
	f.Add([]byte(`{"rank":-7}`), []byte(
		"{\"k\":\"procs\",\"procs\":{\"-1\":\"T\"}}\n{\"k\":\"report\"}\n{\"k\":\"report\"}\n"),
		[]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, hello, text, raw []byte) {
		if len(hello)+len(text)+len(raw) > 1<<12 {
			return
		}
		cfg := Config{Me: Hello{Rank: 0}, Size: 3, Beat: time.Hour, standIn: time.Hour,
			OnHeartbeat: func(int, []byte) {}, Listener: &Listener{}}
		h := newHub(&cfg)
		m, err := readMessage(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(hello)+10)),
			append(append([]byte(`{"hello":`), hello...), '}')...)))
		if err != nil || m.Hello == nil {
			m = message{Hello: &Hello{Rank: 1}}
		}
		serve := func(rank int, join message) (net.Conn, <-chan struct{}) {
			near, far := net.Pipe()
			served := make(chan struct{})
			go func() {
				h.serve(far, bufio.NewReader(far), rank, join)
				close(served)
			}()
			return near, served
		}
		well, wellServed := serve(2, message{Hello: &Hello{Rank: 2}})
		answers := make(chan message)
		go func() {
			defer close(answers)
			for r := bufio.NewReader(well); ; {
				m, err := readMessage(r)
				if err != nil {
					return
				}
				if m.Kind == msgBeat {
					answers <- m
				}
			}
		}()
		bad, badServed := serve(1, m)
		says(bad, text, raw)
		ends(t, "the hub's side of a session", badServed)
		beat, err := frame(message{Kind: msgBeat})
		testkit.Must(t, err)
		if _, err := well.Write(beat); err != nil {
			t.Fatalf("another rank is cut off: %v", err)
		}
		select {
		case _, ok := <-answers:
			if !ok {
				t.Fatal("another rank is cut off")
			}
		case <-time.After(patience):
			t.Fatal("another rank gets no answer")
		}
		h.close()
		well.Close()
		ends(t, "the hub", wellServed)
		for range answers {
		}
	})
}

// Whatever a hub says after the handshake, a rank goes on, and ends at most once.
func FuzzRankSession(f *testing.F) {
	f.Add([]byte("{\"k\":\"ask\",\"limit\":-1}\n{\"k\":\"look\",\"pids\":{\"0\":0,\"1\":-1}}\n"+
		"{\"k\":\"cause\",\"cause\":{\"rank\":9}}\n"), []byte(nil))
	f.Add([]byte("{\"k\":\"gather\"}\n{\"k\":\"rank\",\"rank\":{\"rank\":1}}\n{\"k\":\"reported\"}\n"+
		"{\"k\":\"reported\"}\n{\"k\":\"gather\"}\n"), []byte("\x00"))
	f.Add([]byte("{\"k\":\"bye\"}\n{\"k\":\"ack\",\"of\":\"bye\"}\n{\"k\":\"ack\",\"of\":\"bye\"}\n"+
		"{\"k\":\"cause\"}\n"), []byte("\x00\x10\x00\x00{"))
	f.Fuzz(func(t *testing.T, text, raw []byte) {
		if len(text)+len(raw) > 1<<12 {
			return
		}
		told := make(chan Cause, 2)
		cfg := Config{Me: Hello{Rank: 2}, Size: 3, State: func() []byte { return []byte("{}") },
			OnEnd: func(c Cause) { told <- c }}
		n := &Net{cfg: cfg, done: make(chan struct{}), ended: make(chan struct{})}
		near, far := net.Pipe()
		k := &link{line: newLine(far, bufio.NewReader(far), 3), bye: make(chan struct{})}
		k.report = &report{states: make([]RankState, 3), begun: make(chan struct{}), whole: make(chan struct{})}
		n.links = []*link{k}
		n.wg.Go(k.line.run)
		n.wg.Go(func() { n.listen(k) })
		says(near, text, raw)
		closed := make(chan struct{})
		go func() {
			n.Close()
			close(closed)
		}()
		ends(t, "a rank", closed)
		if len(told) > 1 {
			t.Error("a rank is told twice that the job ends")
		}
	})
}
