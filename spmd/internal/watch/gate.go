package watch

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// These limits hold for those who have not proved that they know the key.
const (
	minGuests = 64 // at a time, and one for each address; others wait in the kernel
	// the same, if the process may have many descriptors, or as many as the job has ranks
	maxGuests    = 1024
	guestShare   = 8                      // what part of its descriptors guests may have
	guestTurn    = 100 * time.Millisecond // that a guest has at least, when others wait
	maxListeners = 16                     // addresses of one hub
)

// Listener waits for the ranks on a hub's addresses.
type Listener struct {
	lns []net.Listener
}

// The loopback of Listen.
const EveryAddress, Loopback = false, true

// Listen listens on random ports. A job on one node needs only the loopback address. Otherwise it
// listens on each address of the interfaces that are up, except those that lead nowhere.
func Listen(loopback bool) (*Listener, error) {
	ips := []string{"127.0.0.1"}
	if !loopback {
		var err error
		if ips, err = addresses(); err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		if len(ips) == 0 {
			return nil, errors.New("watch: no network interface with an address is up but the loopback")
		}
	}
	l := &Listener{}
	lc := net.ListenConfig{KeepAlive: -1} // tune sets it
	lc.SetMultipathTCP(false)             // which does not know every option that tune sets
	var failed error
	for _, ip := range ips {
		ln, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			failed = fmt.Errorf("watch: %w", err) // an address may go away, or be tentative
			continue
		}
		l.lns = append(l.lns, ln)
	}
	if len(l.lns) == 0 {
		return nil, failed
	}
	return l, nil
}

// addresses returns the addresses by which other nodes may reach this one.
func addresses() ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			// This is neither loopback nor link-local.
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && len(ips) < maxListeners {
				ips = append(ips, ip.IP.String())
			}
		}
	}
	return ips, nil
}

// Addrs returns the addresses for Config.Hubs.
func (l *Listener) Addrs() []string {
	var addrs []string
	for _, ln := range l.lns {
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs
}

// Close stops listening, for listeners that no Join has taken over. Connections made before stay.
func (l *Listener) Close() error {
	var errs []error
	for _, ln := range l.lns {
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tune makes the kernel give a connection up if nothing is acknowledged for cutLimit, sent or not.
// A stopped process does not matter: its kernel acknowledges.
func tune(conn net.Conn) error { return probe(conn, cutLimit/6, cutLimit) }

// calm is tune for the connection of a rank whose beats another carries, which tells if the host is
// cut off. Thousands of silent connections would be probed at the same moments, which loses
// packets. So each rank has its own time.
func calm(conn net.Conn, rank int) error {
	return probe(conn, cutLimit+time.Duration(rank%int(cutLimit.Seconds()))*time.Second, 8*cutLimit)
}

// probe has a connection probed that was idle for so long, six times at most, and given
// up after limit.
func probe(conn net.Conn, idle, limit time.Duration) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: idle, Interval: idle, Count: 6}); err !=
		nil {
		return err
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
	return errors.Join(err, set)
}

// This is the handshake. A stranger's first message proves nothing and gets no answer. A recorded
// one of a rank's gets a useless answer. Each proof is an HMAC-SHA256 over all that both sides have
// said so far, ranks included.
//
//	rank: magic, its rank, the hub's rank, nonce, proof "hello"
//	hub:  nonce, proof "hub"
//	rank: proof "rank"
const (
	magic      = "LSwatch1"
	nonceBytes = 32
	introBytes = len(magic) + 4 + 4 + nonceBytes
)

var errStranger = errors.New("the other side does not prove that it belongs to this job")

func proof(key *[32]byte, what string, said ...[]byte) []byte {
	h := hmac.New(sha256.New, key[:])
	io.WriteString(h, what)
	h.Write([]byte{0})
	for _, s := range said {
		h.Write(s)
	}
	return h.Sum(nil)
}

// greet does the rank's side.
func greet(conn io.ReadWriter, key *[32]byte, rank, hub int) error {
	intro := make([]byte, 0, introBytes)
	intro = append(intro, magic...)
	intro = binary.BigEndian.AppendUint32(intro, uint32(rank))
	intro = binary.BigEndian.AppendUint32(intro, uint32(hub))
	intro = append(intro, nonce()...)
	if _, err := conn.Write(slices.Concat(intro, proof(key, "hello", intro))); err != nil {
		return err
	}
	answer := make([]byte, nonceBytes+sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	theirs := answer[:nonceBytes]
	if !hmac.Equal(answer[nonceBytes:], proof(key, "hub", intro, theirs)) {
		return errStranger
	}
	_, err := conn.Write(proof(key, "rank", intro, theirs))
	return err
}

// welcome does the hub's side. It returns the rank at the other end.
func welcome(conn io.ReadWriter, key *[32]byte, hub, size int) (int, error) {
	first := make([]byte, introBytes+sha256.Size)
	// A caller with other words is a stranger at once. The hub need not wait for it.
	if _, err := io.ReadFull(conn, first[:len(magic)]); err != nil {
		return 0, err
	}
	if string(first[:len(magic)]) != magic {
		return 0, errStranger
	}
	if _, err := io.ReadFull(conn, first[len(magic):]); err != nil {
		return 0, err
	}
	intro := first[:introBytes]
	if !hmac.Equal(first[introBytes:], proof(key, "hello", intro)) {
		return 0, errStranger
	}
	rank := binary.BigEndian.Uint32(intro[len(magic):])
	if rank >= uint32(size) || binary.BigEndian.Uint32(intro[len(magic)+4:]) != uint32(hub) {
		return 0, errStranger // a rank of this job that looks for another hub, with the same address on its own node
	}
	ours := nonce()
	if _, err := conn.Write(slices.Concat(ours, proof(key, "hub", intro, ours))); err != nil {
		return 0, err
	}
	theirs := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return 0, err
	}
	if !hmac.Equal(theirs, proof(key, "rank", intro, ours)) {
		return 0, errStranger
	}
	return int(rank), nil
}

func nonce() []byte {
	b := make([]byte, nonceBytes)
	rand.Read(b) // never fails
	return b
}

// gate holds the connections that have not proved themselves. If there are too many, those that had
// their turn make room, so that a crowd of strangers delays a rank for a moment and not for
// shakeLimit each.
//
// A rank sends its proof at once, so that it is there when the hub takes up its connection. One
// that was too slow comes again.
type gate struct {
	size   int // guests at a time
	mu     sync.Mutex
	guests []guest // oldest first
	closed bool
	gone   chan struct{} // 1: a guest went
	done   chan struct{} // closed with the gate
}

type guest struct {
	conn  net.Conn
	since time.Time
}

// newGate returns the gate of a hub for so many ranks at once. Those that it sends away come again,
// which costs both sides more than a place.
func newGate(ranks int) *gate {
	size := minGuests
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		size = int(min(max(files.Cur/guestShare, minGuests), maxGuests))
		if left := uint64(ranks + spareFiles); files.Cur > left { // beside the members
			size = max(size, int(min(files.Cur-left, uint64(ranks))))
		}
	}
	return &gate{size: size, gone: make(chan struct{}, 1), done: make(chan struct{})}
}

// admit accepts connections to a listener while there is room, until the gate is closed. A
// goroutine of wg receives each.
func (g *gate) admit(ln net.Listener, wg *sync.WaitGroup, receive func(net.Conn)) {
	for g.room() {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor is left, or the connection has gone already
			select {
			case <-time.After(50 * time.Millisecond):
			case <-g.done:
			}
			continue
		}
		if !g.enter(conn) {
			conn.Close()
			return
		}
		wg.Go(func() { receive(conn) })
	}
}

// room waits until there is room for another guest. It reports false if the gate is closed.
func (g *gate) room() bool {
	for {
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			return false
		}
		if len(g.guests) < g.size {
			g.mu.Unlock()
			return true
		}
		wait := guestTurn - time.Since(g.guests[0].since)
		if wait <= 0 {
			g.guests[0].conn.Close()
			g.guests = slices.Delete(g.guests, 0, 1)
			g.mu.Unlock()
			return true
		}
		g.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-g.gone:
		case <-g.done:
		}
		t.Stop()
	}
}

// enter adds a guest, and reports false if the gate is closed.
func (g *gate) enter(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.guests = append(g.guests, guest{conn, time.Now()})
	}
	return !g.closed
}

// leave removes a guest, who has become a member or whose connection is closed. It reports false
// for one that was sent away before.
func (g *gate) leave(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.guests)
	g.guests = slices.DeleteFunc(g.guests, func(o guest) bool { return o.conn == conn })
	select {
	case g.gone <- struct{}{}:
	default:
	}
	return len(g.guests) < n
}

// close sends every guest away and lets nobody in any more.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	close(g.done)
	for _, o := range g.guests {
		o.conn.Close()
	}
	g.guests = nil
}

// dial connects to a hub, by the address that answers first and proves to be the hub. It tries
// addresses in order, the next one when one has failed or is slow.
func dial(ctx context.Context, key *[32]byte, rank, hub int, addrs []string) (net.Conn, error) {
	const head = 300 * time.Millisecond
	if len(addrs) == 0 {
		return nil, fmt.Errorf("rank %d has no address", hub)
	}
	ctx, cancel := context.WithTimeout(ctx, shakeLimit)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	var won net.Conn
	var failed []string
	for next, running := 0, 0; ; {
		if next < len(addrs) && won == nil {
			go func(addr string) {
				conn, err := dialOne(ctx, key, rank, hub, addr)
				results <- result{conn, err}
			}(addrs[next])
			next++
			running++
		}
		if running == 0 {
			break
		}
		slow := time.NewTimer(head)
		select {
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				failed = append(failed, r.err.Error())
			case won != nil:
				r.conn.Close()
			default:
				won = r.conn
				cancel() // the others
			}
		case <-slow.C:
		}
		slow.Stop()
	}
	if won == nil {
		return nil, errors.New(strings.Join(failed, "; "))
	}
	return won, nil
}

func dialOne(ctx context.Context, key *[32]byte, rank, hub int, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if err = tune(conn); err == nil {
		err = greet(conn, key, rank, hub)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	return conn, nil
}
