package watch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// maxFrame bounds a message: a state with its envelope, or a cause whose text doubles and
// trebles as JSON.
const maxFrame = 512 << 10

// These are the kinds of messages. A rank sends messages of the first group, a hub of the second,
// and both of the third.
const (
	msgJoin   = "join"  // Hello, NS: the first message of a rank
	msgFail   = "fail"  // Cause
	msgWarn   = "warn"  // Cause of what fails from now on
	msgState  = "state" // State or Note, as asked for
	msgProcs  = "procs" // Procs, as asked for
	msgReport = "report"
	msgPart   = "part" // Part of an account, and how many are To Come

	msgWelcome  = "welcome"  // Hello of the hub, or Note: why not
	msgCause    = "cause"    // Cause, decided
	msgAsk      = "ask"      // Limit: say your state
	msgAccount  = "account"  // send your account
	msgLook     = "look"     // PIDs: look at these processes
	msgGather   = "gather"   // the report is under way
	msgRank     = "rank"     // Rank
	msgReported = "reported" // every rank was sent

	msgBeat = "beat" // from a hub, or a carrier: the echo
	msgBye  = "bye"
	msgAck  = "ack" // Of: msgCause or msgBye
)

type message struct {
	Kind  string          `json:"k"`
	Of    string          `json:"of,omitempty"`
	Note  string          `json:"note,omitempty"`
	Hello *Hello          `json:"hello,omitempty"`
	NS    string          `json:"ns,omitempty"` // PID namespace
	Cause *Cause          `json:"cause,omitempty"`
	State json.RawMessage `json:"state,omitempty"`
	Alive []int           `json:"alive,omitempty"` // ranks whose beats this one carries
	Beats []Beat          `json:"beats,omitempty"`
	Limit int             `json:"limit,omitempty"`
	Part  []byte          `json:"part,omitempty"`
	Come  int             `json:"come,omitempty"`
	PIDs  map[int]int     `json:"pids,omitempty"`  // by rank
	Procs map[int]string  `json:"procs,omitempty"` // by rank
	Rank  *RankState      `json:"rank,omitempty"`
}

// frame returns m with its length in front.
func frame(m message) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // which would make a state up to six times as long
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("message %q: %w", m.Kind, err)
	}
	f := b.Bytes()
	if len(f)-4 > maxFrame {
		return nil, fmt.Errorf("message %q of %d bytes, the limit is %d", m.Kind, len(f)-4, maxFrame)
	}
	binary.BigEndian.PutUint32(f, uint32(len(f)-4))
	return f, nil
}

// rankFrame returns the message that holds s.
func rankFrame(s RankState) []byte {
	f, err := frame(message{Kind: msgRank, Rank: &s})
	if err != nil { // not for a state that came in a message as long
		s.State, s.Note = nil, err.Error()
		f, _ = frame(message{Kind: msgRank, Rank: &s})
	}
	return f
}

// readMessage reads one message. Memory grows with what has arrived, not with the announced length.
func readMessage(r io.Reader) (message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > maxFrame {
		return message{}, badMessage(fmt.Sprintf("%d bytes, the limit is %d", n, maxFrame))
	}
	body, err := io.ReadAll(io.LimitReader(r, n))
	if err != nil {
		return message{}, err
	}
	if int64(len(body)) < n {
		return message{}, io.ErrUnexpectedEOF
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return message{}, badMessage(err.Error())
	}
	return m, nil
}

// badMessage is the error of bytes that are no message. Other errors of readMessage are the
// connection's.
type badMessage string

func (e badMessage) Error() string { return "bad message on the control channel: " + string(e) }

// line is one proved connection. A goroutine writes queued messages, so that no sender waits for a
// peer that is stopped or slow.
type line struct {
	conn net.Conn
	r    *bufio.Reader
	room int // messages that may wait

	mu    sync.Mutex
	queue [][]byte
	err   error // that ended run
	wake  chan struct{}

	once sync.Once
	down chan struct{} // closed with the line
}

// newLine returns the line over conn. Its run must be called.
func newLine(conn net.Conn, r *bufio.Reader, size int) *line {
	return &line{
		conn: conn, r: r, room: 4*size + 64,
		wake: make(chan struct{}, 1), down: make(chan struct{}),
	}
}

func (l *line) send(m message) {
	if f, err := frame(m); err == nil { // what could be too long was cut before
		l.put(f)
	}
}

// put queues a message that is a frame already.
func (l *line) put(f []byte) {
	l.mu.Lock()
	// Each side asks again only when it was answered, so only a peer that
	// breaks this can fill the queue.
	if len(l.queue) < l.room {
		l.queue = append(l.queue, f)
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// answer writes the answer to a beat at once. Another goroutine's help takes longer than the rest
// of a beat. The sender of a beat reads, since there is one at a time.
func (l *line) answer() {
	if err := l.write(echo); err != nil {
		l.fail(err)
		l.close()
	}
}

func (l *line) write(f []byte) error {
	err := l.conn.SetWriteDeadline(time.Now().Add(cutLimit))
	if err == nil {
		_, err = l.conn.Write(f)
	}
	return err
}

// fail notes what ended the writing, for read.
func (l *line) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// run writes what is queued until the line is closed.
func (l *line) run() {
	defer l.close()
	for {
		select {
		case <-l.wake:
		case <-l.down:
			return
		}
		l.mu.Lock()
		queue := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, f := range queue {
			if err := l.write(f); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// read returns the next message, or the error that ended the connection.
func (l *line) read() (message, error) {
	m, err := readMessage(l.r)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err != nil {
			err = l.err
		}
	}
	return m, err
}

func (l *line) close() {
	l.once.Do(func() {
		close(l.down)
		l.conn.Close()
	})
}
