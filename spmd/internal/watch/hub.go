package watch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// hub is the part of ranks 0 and 1 that the others are connected to.
type hub struct {
	cfg  *Config
	ln   *Listener
	gate *gate
	wg   sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at a change for await
	done    chan struct{} // closed by close
	closed  bool
	members []*member // by rank; nil until it joins
	joined  int
	warned  *Cause    // what a rank has said that it ends by, before anything failed
	claims  []Cause   // before one is chosen
	cause   *Cause    // the chosen one
	gather  *gather   // the one under way
	last    *accounts // that are asked for
}

// member is a rank, as the hub sees it.
type member struct {
	Hello
	ns        string
	line      *line
	heard     time.Time
	gone      bool // the connection has ended
	left      bool // after goodbye
	died      bool // without goodbye
	silent    bool // and OnSilent has been called for it
	failed    bool // it has said why it ends
	told      bool // it has the cause
	carried   bool // its beats have come with another's
	waved     bool // it has the goodbye of the hub's rank
	asked     bool // for its state, and has not answered
	reporting bool // a report is on its way to it
}

func newHub(cfg *Config) *hub {
	h := &hub{
		cfg: cfg, ln: cfg.Listener, gate: newGate(cfg.Size),
		changed: make(chan struct{}), done: make(chan struct{}),
		members: make([]*member, cfg.Size),
	}
	for _, ln := range h.ln.lns {
		h.wg.Go(func() { h.gate.admit(ln, &h.wg, h.receive) })
	}
	if cfg.OnSilent != nil {
		h.wg.Go(h.observe)
	}
	return h
}

// close ends the hub and its connections.
func (h *hub) close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	close(h.done)
	for _, m := range h.members {
		if m != nil {
			m.line.close()
		}
	}
	h.mu.Unlock()
	h.ln.Close()
	h.gate.close()
	h.wg.Wait()
}

// receive makes a guest a member, or sends it away without a word.
func (h *hub) receive(conn net.Conn) {
	rank, hello, r, err := h.prove(conn)
	if !h.gate.leave(conn) || err != nil {
		conn.Close()
		return
	}
	h.serve(conn, r, rank, hello)
}

func (h *hub) prove(conn net.Conn) (rank int, join message, r *bufio.Reader, err error) {
	if err = conn.SetDeadline(time.Now().Add(shakeLimit)); err != nil {
		return
	}
	if rank, err = welcome(conn, &h.cfg.Key, h.cfg.Me.Rank, h.cfg.Size); err != nil {
		return
	}
	r = bufio.NewReader(conn)
	if join, err = readMessage(r); err != nil {
		return
	}
	if join.Kind != msgJoin || join.Hello == nil || join.Hello.Rank != rank {
		err = errStranger
		return
	}
	if err = tune(conn); err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return
}

// serve admits a rank and listens to it until its connection ends.
func (h *hub) serve(conn net.Conn, r *bufio.Reader, rank int, join message) {
	l := newLine(conn, r, h.cfg.Size)
	defer l.close()
	m, err := h.admit(l, rank, join)
	if err != nil {
		if f, ferr := frame(message{Kind: msgWelcome, Note: err.Error()}); ferr == nil {
			conn.SetWriteDeadline(time.Now().Add(failLimit))
			conn.Write(f)
		}
		return
	}
	h.wg.Go(l.run)
	for {
		msg, err := l.read()
		if err != nil {
			h.lost(m, err)
			return
		}
		if msg.Kind == msgBeat && h.cfg.OnHeartbeat != nil {
			if len(msg.State) > 0 {
				h.cfg.OnHeartbeat(rank, msg.State)
			}
			for _, b := range msg.Beats {
				h.cfg.OnHeartbeat(b.Rank, b.State)
			}
		}
		h.handle(m, msg)
		if msg.Kind == msgBeat {
			l.answer()
		}
	}
}

func (h *hub) admit(l *line, rank int, join message) (*member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("rank %d has closed its control channel", h.cfg.Me.Rank)
	}
	if h.members[rank] != nil {
		return nil, fmt.Errorf("rank %d has joined before", rank)
	}
	m := &member{Hello: *join.Hello, ns: join.NS, line: l, heard: time.Now()}
	h.members[rank] = m
	h.joined++
	l.send(message{Kind: msgWelcome, Hello: &h.cfg.Me})
	if h.cause != nil {
		l.send(message{Kind: msgCause, Cause: h.cause})
	}
	if h.joined == h.cfg.Size { // whoever comes now is a stranger
		h.ln.Close()
		h.gate.close()
	}
	return m, nil
}

// echo answers a beat. It is the same for all.
var echo, _ = frame(message{Kind: msgBeat}) // not too long

func (h *hub) handle(m *member, msg message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.heard, m.silent = time.Now(), false
	switch msg.Kind {
	case msgBeat:
		for _, rank := range msg.Alive {
			if rank < 0 || rank >= len(h.members) || h.members[rank] == nil {
				continue
			}
			o := h.members[rank]
			o.heard, o.silent = m.heard, false
			if o != m && !o.carried {
				o.carried = true
				_ = calm(o.line.conn, rank) // if this fails, the connection stays as it was
			}
		}
	case msgFail:
		if msg.Cause == nil {
			return
		}
		m.failed = true
		h.claim(*msg.Cause)
	case msgWarn:
		if h.warned == nil {
			h.warned = msg.Cause
			h.bump()
		}
	case msgBye:
		m.left = true
		m.line.send(message{Kind: msgAck, Of: msgBye})
		h.bump()
	case msgAck:
		m.told = m.told || msg.Of == msgCause
		m.waved = m.waved || msg.Of == msgBye
		h.bump()
	case msgState:
		m.asked = false
		if g := h.gather; g != nil && g.waiting[m.Rank] {
			delete(g.waiting, m.Rank)
			g.states[m.Rank].State, g.states[m.Rank].Note = msg.State, msg.Note
			h.bump()
		}
	case msgPart:
		if h.last != nil {
			h.last.take(m.Rank, msg.Part, msg.Come)
			h.bump()
		}
	case msgProcs:
		if g := h.gather; g != nil && g.looks > 0 {
			g.looks--
			for rank, state := range msg.Procs {
				if rank >= 0 && rank < len(g.states) {
					g.states[rank].ProcState = state
				}
			}
			h.bump()
		}
	case msgReport:
		if !m.reporting && !h.closed {
			m.reporting = true
			m.line.send(message{Kind: msgGather})
			h.wg.Go(func() { h.deliver(m) })
		}
	}
}

// lost notes that a rank's connection has ended.
func (h *hub) lost(m *member, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	m.gone = true
	if g := h.gather; g != nil {
		delete(g.waiting, m.Rank)
	}
	if h.last != nil {
		h.last.lose(m.Rank)
	}
	if !m.left {
		m.died = true
		if !m.failed {
			h.claim(h.causeOf(m, err))
		}
	}
	h.bump()
}

// causeOf returns the cause for a member's connection that ended without goodbye. Called
// with mu held.
func (h *hub) causeOf(m *member, err error) Cause {
	// The other ranks of a host that is cut off follow at once. Half of the time tells
	// them from those that are well.
	who := append([]Hello{m.Hello},
		slices.DeleteFunc(h.unheard(cutLimit/2), func(o Hello) bool { return o.Rank == m.Rank })...)
	return causeOf(h.cfg.Me, who, err)
}

// causeOf returns the cause for a connection from one rank to the first of others that ended by
// err, without goodbye.
func causeOf(from Hello, to []Hello, err error) Cause {
	c := Cause{Hello: to[0], Kind: KindDied, Time: time.Now()}
	var bad badMessage
	switch {
	case errors.As(err, &bad):
		c.Kind, c.Text = KindError, err.Error()
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		c.Kind = KindCut
		c.Text = fmt.Sprintf("%s cannot be reached from %s: no acknowledgement for %v: the host is down, or the "+
			"network between is cut (%v)",
			hostsOf(to), hostsOf([]Hello{from}), cutLimit, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, net.ErrClosed):
		c.Text = NoWord
	default:
		c.Text = "its connection ended: " + err.Error()
	}
	return c
}

// unheard returns the ranks that were silent for so long, and have not said goodbye. Called
// with mu held.
func (h *hub) unheard(limit time.Duration) (who []Hello) {
	for _, m := range h.members {
		if m != nil && !m.left && time.Since(m.heard) > limit {
			who = append(who, m.Hello)
		}
	}
	return who
}

// observe calls OnSilent for the ranks that have become silent.
func (h *hub) observe() {
	t := time.NewTicker(h.cfg.Beat)
	defer t.Stop()
	last := time.Now()
	hold := last
	for {
		select {
		case <-t.C:
		case <-h.done:
			return
		}
		now := time.Now()
		if now.Sub(last) > h.cfg.Silence { // this process was stopped: it has not listened
			hold = now.Add(h.cfg.Silence)
		}
		last = now
		if now.Before(hold) {
			continue
		}
		h.mu.Lock()
		who := h.newlySilent()
		h.mu.Unlock()
		if who != nil {
			h.cfg.OnSilent(hostsOf(who))
		}
	}
}

// newlySilent returns the newly silent ranks, if it is for this hub to say so. Called with mu held.
func (h *hub) newlySilent() []Hello {
	limit := 2 * h.cfg.Silence
	if h.closed || len(h.claims) > 0 || h.cause != nil { // OnEnd says it
		return nil
	}
	if first := h.members[0]; h.cfg.Me.Rank != 0 && (first == nil || time.Since(first.heard) <= limit) {
		return nil
	}
	// All ranks of a host count at once, though some beat later than others.
	who := h.unheard(limit - 2*h.cfg.Beat)
	due := slices.ContainsFunc(who,
		func(r Hello) bool { m := h.members[r.Rank]; return !m.silent && time.Since(m.heard) > limit })
	who = slices.DeleteFunc(who, func(r Hello) bool { return h.members[r.Rank].silent })
	if !due {
		return nil
	}
	for _, r := range who {
		h.members[r.Rank].silent = true
	}
	return who
}

// claim takes up a cause. The first one starts the time for an earlier one to come. The stand-in's
// time is so long that a healthy hub decides first. Called with mu held.
func (h *hub) claim(c Cause) {
	if h.cause != nil || h.closed || len(h.claims) >= 64 {
		return
	}
	if c.PID == 0 && c.Rank >= 0 && c.Rank < len(h.members) && h.members[c.Rank] != nil {
		c.Hello = h.members[c.Rank].Hello
	}
	h.claims = append(h.claims, c)
	if len(h.claims) > 1 {
		return
	}
	wait := settleTime
	switch {
	case h.cfg.Me.Rank != 0:
		wait = h.cfg.standIn
	case h.warned != nil: // it is the cause, and the launcher may kill soon
		wait = 0
	}
	h.wg.Go(func() {
		select {
		case <-time.After(wait):
		case <-h.done:
			return
		}
		h.mu.Lock()
		first := h.first()
		h.mu.Unlock()
		h.conclude(first)
	})
}

// first returns the cause of the job. Others may follow from it and be quicker. Called
// with mu held.
func (h *hub) first() Cause {
	if h.warned != nil {
		return *h.warned
	}
	for _, c := range h.claims {
		if c.Kind == KindDied || c.Kind == KindCut {
			return c
		}
	}
	return h.claims[0]
}

// conclude settles the cause, unless there is one, and tells every rank, the hub's own last, since
// its process may end at once.
func (h *hub) conclude(c Cause) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil || h.closed {
		return
	}
	h.cause = &c
	own := h.cfg.Me.Rank
	for rank, m := range h.members {
		if m != nil && rank != own {
			m.line.send(message{Kind: msgCause, Cause: &c})
		}
	}
	limit := tellLimit
	if h.warned != nil { // the launcher may kill soon, and the other ranks also have the signal
		limit = tellWarned
	}
	h.wg.Go(func() {
		h.await(limit, func() bool { return h.all(func(m *member) bool { return m.told }) })
		h.mu.Lock()
		defer h.mu.Unlock()
		if m := h.members[own]; m != nil {
			m.line.send(message{Kind: msgCause, Cause: &c})
		}
	})
}

// bye tells the other ranks that the hub ends in order, and waits until they know.
func (h *hub) bye() {
	h.mu.Lock()
	for rank, m := range h.members {
		if m != nil && rank != h.cfg.Me.Rank {
			m.line.send(message{Kind: msgBye})
		}
	}
	h.mu.Unlock()
	h.await(failLimit, func() bool { return h.all(func(m *member) bool { return m.waved }) })
}

// allLeft waits until all ranks have said goodbye, and says whether they have.
func (h *hub) allLeft(limit time.Duration) (left bool) {
	h.await(limit, func() bool {
		left = h.cause == nil && !slices.ContainsFunc(h.members, func(m *member) bool { return m != nil && !m.left })
		return left || h.cause != nil
	})
	return left
}

// all reports whether ok holds for every other rank that is connected. Called with mu held.
func (h *hub) all(ok func(*member) bool) bool {
	for rank, m := range h.members {
		if m != nil && rank != h.cfg.Me.Rank && !m.gone && !ok(m) {
			return false
		}
	}
	return true
}

// bump wakes those who wait for a change. Called with mu held.
func (h *hub) bump() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// await waits until cond holds, which it calls with mu held, the limit has passed, or the
// hub is closed.
func (h *hub) await(limit time.Duration, cond func() bool) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		h.mu.Lock()
		ok, changed := cond(), h.changed
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-t.C:
			return
		case <-h.done:
			return
		}
	}
}
