package dashboard

import (
	"net"
	"slices"
	"sync"
	"time"
)

// The most connections at a time, and how long a new one keeps its place from the next.
const (
	mostGuests  = 16 // that have not shown the token
	mostMembers = 64 // that have
	atLeast     = 50 * time.Millisecond
)

// places is a listener that holds few connections. If all places are taken, the next connection
// takes the place of the one that came first: a request gets an answer, however many hold a
// connection and say nothing.
type places struct {
	net.Listener
	closed chan struct{}
	once   sync.Once

	mu              sync.Mutex
	guests, members []*place // who has come last is last
}

func newPlaces(ln net.Listener) *places { return &places{Listener: ln, closed: make(chan struct{})} }

// accept returns the next connection, which is a guest.
func (l *places) accept() (*place, error) {
	c, err := l.Accept()
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

// Close ends accept, and closes the guests.
func (l *places) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
		l.empty(&l.guests)
	})
	return err
}

// clear closes all connections.
func (l *places) clear() {
	l.empty(&l.guests)
	l.empty(&l.members)
}

// empty closes the connections of a list.
func (l *places) empty(list *[]*place) {
	l.mu.Lock()
	all := slices.Clone(*list)
	l.mu.Unlock()
	for _, p := range all {
		_ = p.Close() // it is gone whatever comes of it
	}
}

// take gives a connection the last place of a list. If there are too many, it closes the first.
// young is how much sooner than atLeast the first has lost its place.
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

// show makes a connection whose request has the token a member.
func (p *place) show() {
	p.of.leave(p)
	p.of.take(&p.of.members, p, mostMembers)
}
