package dashboard

import (
	"net"
	"sync"
)

// limited is a listener with a number of connections at a time. Others wait in the kernel.
type limited struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimited(ln net.Listener, most int) *limited {
	return &limited{Listener: ln, room: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a connection, and for room for it.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close has Accept end.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	leave func()
}

// Close makes room for another connection.
func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
