package dashboard

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// mostHead is the most bytes of a request.
const mostHead = 16 << 10

// request is a viewer's question.
type request struct {
	method, path string // the path as it was sent, without the part behind a ?
	body         bool   // something was announced to follow
}

// readRequest reads the lines of a request of HTTP/1 up to the blank one; ok says that it is whole.
// Source: RFC 9112, sections 2, 3 and 6.
func readRequest(from io.Reader) (r request, ok bool) {
	in := bufio.NewReader(io.LimitReader(from, mostHead))
	line := func() (string, error) {
		text, err := in.ReadString('\n')
		return strings.TrimRight(text, "\r\n"), err
	}
	first, err := line()
	if err != nil {
		return r, false
	}
	method, rest, _ := strings.Cut(first, " ")
	target, version, _ := strings.Cut(rest, " ")
	if !strings.HasPrefix(version, "HTTP/1.") {
		return r, false
	}
	r.method = method
	if through, ok := strings.CutPrefix(target, "http://"); ok { // as proxies are asked
		_, path, _ := strings.Cut(through, "/")
		target = "/" + path
	}
	r.path, _, _ = strings.Cut(target, "?")
	for {
		header, err := line()
		if err != nil || header == "" {
			return r, err == nil
		}
		name, value, _ := strings.Cut(header, ":")
		switch strings.ToLower(name) {
		case "content-length":
			r.body = r.body || strings.Trim(value, " \t0") != ""
		case "transfer-encoding":
			r.body = true
		}
	}
}

// answer is the reply to a viewer.
type answer struct {
	status string // "" is 200
	kind   string // of the body; "" is plain text
	more   string // headers, each with its end
	body   string
	open   bool // more follows, up to the end of the connection
}

// head returns the lines before the body.
func (a answer) head() string {
	if a.status == "" {
		a.status = "200 OK"
	}
	if a.kind == "" {
		a.kind = "text/plain; charset=utf-8"
	}
	if !a.open {
		a.more += fmt.Sprintf("Content-Length: %d\r\n", len(a.body))
	}
	return "HTTP/1.1 " + a.status + "\r\n" +
		"Date: " + time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT") + "\r\n" +
		"Connection: close\r\n" +
		"Cache-Control: no-store\r\n" +
		"Referrer-Policy: no-referrer\r\n" +
		"X-Content-Type-Options: nosniff\r\n" +
		"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src " +
		"data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n" +
		"Content-Type: " + a.kind + "\r\n" + a.more + "\r\n"
}

func (p *place) answer(r request, a answer) error {
	if r.method == "HEAD" {
		return p.send(a.head(), writeLimit)
	}
	return p.send(a.head()+a.body, writeLimit)
}

// send sends a text within the limit.
func (p *place) send(text string, limit time.Duration) error {
	if err := p.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := io.WriteString(p, text)
	return err
}

// refuse answers a request that gets nothing. A connection that is closed while something arrives
// may lose the answer. So refuse reads for a moment, and throws it away.
func (p *place) refuse(r request, a answer) {
	if p.SetDeadline(time.Now().Add(restLimit)) != nil || p.answer(r, a) != nil || !r.body {
		return
	}
	if tcp, ok := p.Conn.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, p) // it ends by the deadline
	}
}
