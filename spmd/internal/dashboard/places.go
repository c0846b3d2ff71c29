package dashboard

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// How many connections there are at a time, and for how long one that has just come keeps its place from the next.
const (
	mostGuests  = 16 // that have not shown the token
	mostMembers = 64 // that have
	atLeast     = 50 * time.Millisecond
)

// places is a listener that holds few connections. Where all places are taken, the next takes that of the one that has asked
// for nothing for longest: who asks gets an answer, however many hold a connection and say nothing.
type places struct {
	net.Listener
	closed chan struct{}
	once   sync.Once

	mu              sync.Mutex
	guests, members []*place // who has asked last is last
}

func newPlaces(ln net.Listener) *places { return &places{Listener: ln, closed: make(chan struct{})} }

// Accept returns the next connection, which is a guest.
func (l *places) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	p := &place{Conn: c, of: l, since: time.Now()}
	if young := l.take(&l.guests, p, mostGuests); young > 0 {
		select { // whoever connects again and again takes little of the machine
		case <-time.After(young):
		case <-l.closed:
		}
	}
	return p, nil
}

// Close has Accept end.
func (l *places) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// take gives a connection the last place of a list, and closes the first where there are too many. young is how much sooner
// than atLeast that one has lost its place.
func (l *places) take(list *[]*place, p *place, most int) (young time.Duration) {
	l.mu.Lock()
	*list = append(*list, p)
	var first *place
	if len(*list) > most {
		first = (*list)[0]
		young = atLeast - time.Since(first.since)
	}
	l.mu.Unlock()
	if first != nil {
		_ = first.Close() // it is gone whatever comes of it
	}
	return young
}

// leave takes a connection out of the lists.
func (l *places) leave(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := func(o *place) bool { return o == p }
	l.guests, l.members = slices.DeleteFunc(l.guests, is), slices.DeleteFunc(l.members, is)
}

// place is a connection that has one.
type place struct {
	net.Conn
	of    *places
	since time.Time
}

// Close makes room for another connection.
func (p *place) Close() error {
	p.of.leave(p)
	return p.Conn.Close()
}

type placeKey struct{}

// inContext has the requests of a connection find its place.
func inContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, placeKey{}, c)
}

// asked makes the connection of a request that has the token a member, who has asked last.
func asked(ctx context.Context) {
	if p, ok := ctx.Value(placeKey{}).(*place); ok {
		p.of.leave(p)
		p.of.take(&p.of.members, p, mostMembers)
	}
}
