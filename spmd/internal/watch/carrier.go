package watch

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net"
	"slices"
	"sync"
	"time"
)

// In a job of more than carryRanks ranks, one rank of each node carries the heartbeats of
// the others, so that the hubs hear nodes. It is the first that listens on a name which only
// the job knows.
//
// A rank without a carrier, or with one that does not answer, tells the hubs itself that it lives.
// So no rank is silent because another is.
const (
	carryRanks = 64
	mostHeld   = 1 << 20 // bytes of heartbeats that a carrier holds before its ranks must wait
)

// Beat is a heartbeat of a rank.
type Beat struct {
	Rank  int             `json:"r"`
	State json.RawMessage `json:"s"`
}

// carrier is the part of a rank that carries.
type carrier struct {
	cfg  *Config
	ln   net.Listener
	gate *gate
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	lines  []*line        // to the other ranks of the node
	alive  []map[int]bool // for each hub, who has beaten since it was told last
	held   []Beat         // what they have said since
	bytes  int            // of it
	owed   []*line        // whose beats are answered when it has gone
	turn   time.Time      // of carry; one whose rank does not get on carries nothing
	ready  []Beat         // what is to go to a hub; only carry uses it
}

// carrierName returns the name of a node's carrier. It is abstract: it lies in no folder, and goes
// with the process.
func (c *Config) carrierName() string {
	node := binary.BigEndian.AppendUint64(nil, uint64(c.Me.Node))
	return "@lockstep-" + hex.EncodeToString(proof(&c.Key, "carrier", node)[:16])
}

// carrierID stands for a node's carrier in the handshake, in place of a hub's rank.
func (c *Config) carrierID() int { return len(c.Hubs) + c.Me.Node }

// findCarrier connects this rank to the carrier of its node, or makes it the carrier. Hubs have
// none: they have enough to do.
func (n *Net) findCarrier(ctx context.Context) {
	if n.hub != nil || n.cfg.Size <= carryRanks && !n.cfg.carry {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, shakeLimit)
	defer cancel()
	name := n.cfg.carrierName()
	for ctx.Err() == nil {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", name); err == nil {
			n.joinCarrier(ctx, conn)
			return
		}
		if ln, err := net.Listen("unix", name); err == nil {
			n.beCarrier(ln)
			return
		}
		time.Sleep(time.Millisecond) // another has the name, and does not listen yet
	}
}

// joinCarrier sends this rank's beats by conn, unless a stranger is at its other end.
func (n *Net) joinCarrier(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := greet(conn, &n.cfg.Key, n.cfg.Me.Rank, n.cfg.carrierID())
	if !stop() || err != nil {
		conn.Close()
		return
	}
	k := &link{line: newLine(conn, bufio.NewReader(conn), n.cfg.Size)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		conn.Close()
		return
	}
	n.way = k
	for _, hub := range n.links {
		_ = calm(hub.line.conn, n.cfg.Me.Rank) // if this fails, the connection stays as it was
	}
	n.wg.Go(k.line.run)
	n.wg.Go(func() {
		for {
			m, err := k.line.read()
			if err != nil {
				break
			}
			if m.Kind == msgBeat {
				n.note(k, m)
			}
		}
		k.line.close()
		n.mu.Lock()
		n.way = nil
		n.mu.Unlock()
	})
}

// beCarrier makes this rank the carrier of its node.
func (n *Net) beCarrier(ln net.Listener) {
	c := &carrier{cfg: &n.cfg, ln: ln, gate: newGate(n.cfg.Size)}
	for range n.cfg.Hubs {
		c.alive = append(c.alive, map[int]bool{})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		ln.Close()
		return
	}
	n.carrier = c
	c.wg.Go(func() { c.gate.admit(ln, &c.wg, c.serve) })
}

// serve takes the beats of a rank until its connection ends.
func (c *carrier) serve(conn net.Conn) {
	err := conn.SetDeadline(time.Now().Add(shakeLimit))
	rank := 0
	if err == nil {
		rank, err = welcome(conn, &c.cfg.Key, c.cfg.carrierID(), c.cfg.Size)
	}
	if !c.gate.leave(conn) || err != nil || conn.SetDeadline(time.Time{}) != nil {
		conn.Close()
		return
	}
	l := newLine(conn, bufio.NewReader(conn), c.cfg.Size)
	defer l.close()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.lines = append(c.lines, l)
	c.wg.Go(l.run)
	c.mu.Unlock()
	for {
		m, err := l.read()
		if err != nil {
			c.mu.Lock()
			c.lines = slices.DeleteFunc(c.lines, func(o *line) bool { return o == l })
			c.mu.Unlock()
			return
		}
		if m.Kind == msgBeat {
			c.take(rank, m.State, l)
		}
	}
}

// take holds a rank's words until the next message to a hub. It answers at once while there is room
// for more, and such messages go.
func (c *carrier) take(rank int, said []byte, l *line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, who := range c.alive {
		who[rank] = true
	}
	if len(said) > 0 {
		c.held = append(c.held, Beat{rank, said})
		c.bytes += len(said)
	}
	if l != nil {
		c.owed = append(c.owed, l)
	}
	if c.bytes < mostHeld && time.Since(c.turn) < 2*c.cfg.Beat {
		c.answer()
	}
}

// answer answers the beats of the node. Called with mu held.
func (c *carrier) answer() {
	for _, l := range c.owed {
		l.put(echo)
	}
	c.owed = nil
}

// beat returns the next message to a hub. with says that the heartbeats go to this one.
func (c *carrier) beat(hub int, with bool) message {
	m := message{Kind: msgBeat}
	c.mu.Lock()
	c.turn = time.Now()
	for rank := range c.alive[hub] {
		m.Alive = append(m.Alive, rank)
	}
	clear(c.alive[hub])
	var held []Beat
	if with {
		held, c.held, c.bytes = c.held, nil, 0
		c.answer()
	}
	c.mu.Unlock()
	if !with {
		return m
	}
	if c.cfg.Carry != nil {
		held = c.cfg.Carry(held)
	}
	c.ready = append(c.ready, held...)
	length := 0
	for len(c.ready) > 0 && (length == 0 || length+len(c.ready[0].State) <= MaxState) {
		length += len(c.ready[0].State)
		m.Beats = append(m.Beats, c.ready[0])
		c.ready = c.ready[1:]
	}
	return m
}

// close ends the carrying. The ranks of the node then beat themselves.
func (c *carrier) close() {
	c.mu.Lock()
	c.closed = true
	for _, l := range c.lines {
		l.close()
	}
	c.mu.Unlock()
	c.ln.Close()
	c.gate.close()
	c.wg.Wait()
}
