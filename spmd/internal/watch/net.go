package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"lockstep/internal/process"
)

// Net is a rank's part in the network. Its methods may be called from any goroutine.
type Net struct {
	cfg   Config
	ns    string
	hub   *hub    // on ranks 0 and 1
	links []*link // to each hub
	wg    sync.WaitGroup
	done  chan struct{} // closed by Close
	ended chan struct{} // closed when OnEnd is called

	mu     sync.Mutex
	closed bool
	over   bool      // ended is closed
	state  *stateRun // the call of State under way
	way    *link     // to the carrier of the node, or nil
	// set only on the carrier, before beat begins
	carrier *carrier
}

// link is the connection to a hub.
type link struct {
	hub  Hello
	line *line
	bye  chan struct{} // closed when the hub has this rank's goodbye

	// under Net.mu
	beat   time.Time // of the last beat, zero when it is answered
	waved  bool      // bye is closed
	left   bool      // the hub's rank said goodbye
	report *report   // the one that the hub was asked for
}

// Join connects this rank to the hubs and returns. It is collective: every rank calls it, after
// ranks 0 and 1 have told their Addrs. No rank waits for others than ranks 0 and 1.
//
// It fails if a hub cannot be reached until ctx ends, or for a minute if ctx has no deadline. A
// failing rank tells those that it has reached, and its OnEnd is not called for that.
func Join(ctx context.Context, cfg Config) (*Net, error) {
	if err := cfg.check(); err != nil {
		if cfg.Listener != nil {
			cfg.Listener.Close()
		}
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, joinLimit)
		defer cancel()
	}
	n := &Net{
		cfg: cfg, ns: pidNamespace(), links: make([]*link, len(cfg.Hubs)),
		done: make(chan struct{}), ended: make(chan struct{}),
	}
	if cfg.isHub() {
		n.hub = newHub(&n.cfg)
	}
	errs := make([]error, len(cfg.Hubs))
	var wg sync.WaitGroup
	for i := range cfg.Hubs {
		wg.Go(func() { errs[i] = n.connect(ctx, i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		n.mu.Lock()
		n.cfg.OnEnd = nil // the caller has the error
		n.mu.Unlock()
		n.Fail(Cause{Kind: KindError, Text: err.Error()})
		n.Close()
		return nil, err
	}
	n.findCarrier(ctx)
	n.wg.Go(n.beat)
	return n, nil
}

// connect makes the link to hub i, trying again until ctx ends.
func (n *Net) connect(ctx context.Context, i int) error {
	for {
		err := n.try(ctx, i)
		if err == nil || errors.As(err, new(refused)) {
			return err
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("watch: rank %d cannot reach rank %d: %w: %w", n.cfg.Me.Rank, i, ctx.Err(), err)
		}
	}
}

// refused is a hub's reason to admit a rank of its job no more.
type refused string

func (e refused) Error() string { return "watch: " + string(e) }

func (n *Net) try(ctx context.Context, i int) error {
	var conn net.Conn
	if i == n.cfg.Me.Rank {
		var far net.Conn
		conn, far = net.Pipe()
		n.hub.wg.Go(func() {
			n.hub.serve(far, bufio.NewReader(far), i, message{Hello: &n.cfg.Me, NS: n.ns})
		})
	} else {
		var err error
		if conn, err = dial(ctx, &n.cfg.Key, n.cfg.Me.Rank, i, n.cfg.Hubs[i]); err != nil {
			return err
		}
	}
	l := newLine(conn, bufio.NewReader(conn), n.cfg.Size)
	hub, err := n.introduce(l, i)
	if err != nil {
		l.close()
		return err
	}
	k := &link{hub: hub, line: l, bye: make(chan struct{})}
	n.mu.Lock()
	n.links[i] = k
	n.mu.Unlock()
	n.wg.Go(l.run)
	n.wg.Go(func() { n.listen(k) })
	return nil
}

// introduce says who this rank is, and returns who the hub is.
func (n *Net) introduce(l *line, i int) (Hello, error) {
	if err := l.conn.SetDeadline(time.Now().Add(shakeLimit)); err != nil {
		return Hello{}, err
	}
	if i != n.cfg.Me.Rank {
		f, err := frame(message{Kind: msgJoin, Hello: &n.cfg.Me, NS: n.ns})
		if err != nil {
			return Hello{}, err
		}
		if _, err := l.conn.Write(f); err != nil {
			return Hello{}, err
		}
	}
	m, err := l.read()
	switch {
	case err != nil:
		return Hello{}, err
	case m.Kind != msgWelcome || m.Hello == nil:
		return Hello{}, refused(fmt.Sprintf("rank %d does not admit rank %d: %s", i, n.cfg.Me.Rank, m.Note))
	}
	return *m.Hello, l.conn.SetDeadline(time.Time{})
}

// up returns the links that have not ended.
func (n *Net) up() []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	var up []*link
	for _, k := range n.links {
		if k == nil {
			continue
		}
		select {
		case <-k.line.down:
		default:
			up = append(up, k)
		}
	}
	return up
}

// beat says again and again that this rank lives. A beat waits for the answer to the one before, so
// that a stopped peer does not gather them.
func (n *Net) beat() {
	t := time.NewTicker(n.cfg.Beat)
	defer t.Stop()
	for {
		if n.carrier != nil {
			n.carry()
		} else {
			n.sign()
		}
		select {
		case <-t.C:
		case <-n.done:
			return
		}
	}
}

// sign says that this rank lives: to the carrier of its node, or to the hubs without one. If the
// carrier does not answer the hubs hear of it, too: it may be stopped. The rank's heartbeat then
// waits for the carrier.
func (n *Net) sign() {
	n.mu.Lock()
	way := n.way
	n.mu.Unlock()
	if way != nil && n.free(way) {
		n.send(way, message{Kind: msgBeat, State: n.heartbeat()})
		return
	}
	for i, k := range n.up() {
		if !n.free(k) {
			continue
		}
		m := message{Kind: msgBeat}
		if i == 0 && way == nil {
			m.State = n.heartbeat()
		}
		n.send(k, m)
	}
}

// carry tells the hubs who lives on this node, and the first hub their heartbeats.
func (n *Net) carry() {
	n.carrier.take(n.cfg.Me.Rank, nil, nil)
	for i, k := range n.up() {
		if !n.free(k) {
			continue
		}
		if i == 0 {
			n.carrier.take(n.cfg.Me.Rank, n.heartbeat(), nil)
		}
		n.send(k, n.carrier.beat(k.hub.Rank, i == 0))
	}
}

// heartbeat returns this rank's heartbeat, or nil. A rank does not repeat one, so it is asked only
// for what will be sent.
func (n *Net) heartbeat() []byte {
	if n.cfg.Heartbeat == nil {
		return nil
	}
	return n.cfg.Heartbeat()
}

// free reports whether the beat before was answered.
func (n *Net) free(k *link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return k.beat.IsZero()
}

func (n *Net) send(k *link, m message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k.beat = time.Now()
	k.line.send(m)
}

// listen follows a hub's words until the connection ends.
func (n *Net) listen(k *link) {
	for {
		m, err := k.line.read()
		if err != nil {
			k.line.close()
			n.lost(k, err)
			return
		}
		n.handle(k, m)
	}
}

func (n *Net) handle(k *link, m message) {
	switch m.Kind {
	case msgCause:
		if m.Cause == nil {
			return
		}
		k.line.send(message{Kind: msgAck, Of: msgCause})
		if n.hub != nil && k.hub.Rank != n.cfg.Me.Rank {
			n.hub.conclude(*m.Cause) // its own rank is told last
			return
		}
		n.end(*m.Cause)
	case msgAsk:
		run := n.runState()
		n.wg.Go(func() {
			select {
			case <-run.done:
			case <-k.line.down:
				return
			}
			state, note := run.state, run.note
			if len(state) > m.Limit {
				note = fmt.Sprintf("its state of %d bytes is over the limit of %d", len(state), m.Limit)
				state = nil
			}
			k.line.send(message{Kind: msgState, State: state, Note: note})
		})
	case msgAccount:
		go n.sendAccount(k) // not waited for by Close: Account may hang
	case msgLook:
		procs := map[int]string{}
		for rank, pid := range m.PIDs {
			procs[rank] = process.State(pid)
		}
		k.line.send(message{Kind: msgProcs, Procs: procs})
	default:
		n.note(k, m)
	}
}

// note takes in the messages that change only the link.
func (n *Net) note(k *link, m message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch r := k.report; m.Kind {
	case msgBeat:
		k.beat = time.Time{}
	case msgBye:
		k.left = true
		k.line.send(message{Kind: msgAck, Of: msgBye})
	case msgAck:
		if m.Of == msgBye && !k.waved {
			k.waved = true
			close(k.bye)
		}
	case msgGather:
		if r != nil {
			select {
			case <-r.begun:
			default:
				close(r.begun)
			}
		}
	case msgRank:
		if r != nil && m.Rank != nil && m.Rank.Rank >= 0 && m.Rank.Rank < len(r.states) {
			r.states[m.Rank.Rank] = *m.Rank
		}
	case msgReported:
		if r != nil {
			close(r.whole)
			k.report = nil
		}
	}
}

// lost begins when the connection to a hub has ended. Without goodbye the hub has died, which the
// other hub tells, or this rank finds if there is none.
func (n *Net) lost(k *link, err error) {
	n.mu.Lock()
	left := k.left || n.closed
	n.mu.Unlock()
	if left {
		return
	}
	c := causeOf(n.cfg.Me, []Hello{k.hub}, err)
	select {
	case <-time.After(orphanTime):
		n.Fail(c)
	case <-n.ended:
	case <-n.done:
	}
}

// end calls OnEnd, the first time.
func (n *Net) end(c Cause) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over || n.closed {
		return
	}
	n.over = true
	close(n.ended)
	if n.cfg.OnEnd != nil {
		go n.cfg.OnEnd(c)
	}
}

// Fail says that this rank has failed or, if c.Rank is another, has seen that one fail. A
// zero c.Hello means this rank. The hub fills in a zero PID, Node and Host; a zero Time is
// filled in here.
//
// It returns when the job's cause is settled and OnEnd has been called, here too: with this cause,
// or an earlier one. If no hub answers for a second, c is the cause on this rank.
func (n *Net) Fail(c Cause) {
	up := n.tell(msgFail, &c)
	if len(up) > 0 {
		t := time.NewTimer(failLimit)
		defer t.Stop()
		select {
		case <-n.ended:
			return
		case <-n.done:
			return
		case <-t.C:
		}
	}
	n.end(c)
}

// Warn says that this rank is about to end because of c, a signal. c is then the cause of whatever
// fails in the job, on this rank or another. Warn does not end the job, and does not wait.
func (n *Net) Warn(c Cause) { n.tell(msgWarn, &c) }

// tell completes a cause, sends it to the hubs, and returns the present hubs.
func (n *Net) tell(kind string, c *Cause) []*link {
	if c.Hello == (Hello{}) {
		c.Hello = n.cfg.Me
	}
	if c.Time.IsZero() {
		c.Time = time.Now()
	}
	if len(c.Text) > maxCauseText {
		c.Text = c.Text[:maxCauseText] + " ..."
	}
	c.Text = strings.ToValidUTF8(c.Text, "\uFFFD")
	up := n.up()
	for _, k := range up {
		k.line.send(message{Kind: kind, Cause: c})
	}
	return up
}

// Done says goodbye: from now on the end of this process is in order. It returns when the hubs
// know, on a hub when the ranks know, or after two seconds.
//
// The rank still hears of a cause, and a hub stays one, until Close. Ranks 0 and 1 should leave
// last, so a barrier or MPI_Finalize comes before.
func (n *Net) Done() {
	up := n.up()
	for _, k := range up {
		k.line.send(message{Kind: msgBye})
	}
	t := time.NewTimer(failLimit)
	defer t.Stop()
	for _, k := range up {
		select {
		case <-k.bye:
		case <-k.line.down:
		case <-t.C:
			t.Reset(0)
		case <-n.done:
			return
		}
	}
	if n.hub != nil {
		n.hub.bye()
	}
}

// AllLeft waits, on a hub, until every other rank has said goodbye. It reports false if one has
// not within the limit, or the job has a cause. Elsewhere it is true at once: a rank may go when
// the hubs know.
func (n *Net) AllLeft(limit time.Duration) bool { return n.hub == nil || n.hub.allLeft(limit) }

// Close ends this rank's part, without waiting for others. Without Done before, they see a death.
// It may be called more than once, and from OnEnd.
func (n *Net) Close() error {
	n.mu.Lock()
	first := !n.closed
	n.closed = true
	n.mu.Unlock()
	if first {
		close(n.done)
		if n.hub != nil {
			n.hub.close()
		}
		for _, k := range n.up() {
			k.line.close()
		}
		n.mu.Lock()
		way, carrier := n.way, n.carrier
		n.mu.Unlock()
		if way != nil {
			way.line.close()
		}
		if carrier != nil {
			carrier.close()
		}
	}
	n.wg.Wait()
	return nil
}

// pidNamespace returns a name of this process's PID namespace. Its PID means nothing in others.
func pidNamespace() string {
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return ns
}
