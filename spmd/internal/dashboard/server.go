package dashboard

import (
	"bytes"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// Limits of what viewers may take of a rank, which must go on undisturbed.
const (
	readLimit  = 5 * time.Second  // to say what they want
	writeLimit = 10 * time.Second // for an answer, or an event, to be taken
	restLimit  = time.Second      // to take a refusal, and for the rest of a request to arrive
	endLimit   = time.Second      // for the last events to go out
	mostPause  = time.Second      // between two tries to accept, if no descriptor is left
	every      = time.Second      // between two events
)

//go:embed page
var page embed.FS

// Server serves a Board by HTTP. It answers one request of each connection, and closes: viewers ask
// seldom, but for the events, which are one answer. Package net/http would bring TLS and its
// cryptography into every program, 3 MB.
type Server struct {
	URL   string // of the page
	board *Board
	token string
	ln    *places
	work  sync.WaitGroup // what accepts, and what answers
}

// Serve serves a Board until Close. address is as Address returns it.
func Serve(b *Board, address, token string) (*Server, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	at := ln.Addr().(*net.TCPAddr)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = at.IP.String()
	}
	s := &Server{URL: fmt.Sprintf("http://%s/%s/", net.JoinHostPort(host, fmt.Sprint(at.Port)), token),
		board: b, token: token, ln: newPlaces(ln)}
	s.work.Go(s.accept)
	return s, nil
}

// Close tells the viewers that the job has ended, and ends.
func (s *Server) Close() error {
	s.board.End()
	err := s.ln.Close()
	ended := make(chan struct{})
	go func() {
		s.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endLimit): // somebody does not take the last event
		s.ln.clear()
		<-ended
	}
	return err
}

// accept answers each connection, until Close.
func (s *Server) accept() {
	pause := time.Millisecond
	for {
		p, err := s.ln.accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor or no memory is left, for now
			time.Sleep(pause)
			pause = min(2*pause, mostPause)
			continue
		}
		pause = time.Millisecond
		s.work.Go(func() {
			defer p.Close()
			s.serve(p)
		})
	}
}

// serve answers the request of a connection. All addresses begin with the token.
func (s *Server) serve(p *place) {
	if p.SetDeadline(time.Now().Add(readLimit)) != nil {
		return // the connection is gone
	}
	r, ok := readRequest(p)
	if !ok {
		return // it has gone, or said nothing in time
	}
	token, what, folder := strings.Cut(strings.TrimPrefix(r.path, "/"), "/")
	switch {
	case subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1:
		p.refuse(r, answer{status: "403 Forbidden",
			body: "the token is missing or wrong: open the address that the log of the job shows\n"})
		return
	case r.method != "GET" && r.method != "HEAD" || r.body:
		p.refuse(r, answer{status: "405 Method Not Allowed", more: "Allow: GET, HEAD\r\n",
			body: "there is nothing to change\n"})
		return
	}
	p.show()
	if what == "events" {
		s.events(p, r)
		return
	}
	_ = p.answer(r, s.find(what, folder)) // who has gone needs none
}

// find returns the thing at an address behind the token; folder says whether a slash follows that.
func (s *Server) find(what string, folder bool) answer {
	file := func(name, kind string) answer {
		text, err := page.ReadFile("page/" + name)
		return made(kind+"; charset=utf-8", text, err)
	}
	switch {
	case !folder:
		return answer{status: "301 Moved Permanently", more: "Location: /" + s.token + "/\r\n"}
	case what == "":
		return file("page.html", "text/html")
	case what == "page.css":
		return file(what, "text/css")
	case what == "page.js":
		return file(what, "text/javascript")
	case what == "metrics":
		var text bytes.Buffer
		err := s.board.Metrics(&text)
		return made("text/plain; version=0.0.4; charset=utf-8", text.Bytes(), err)
	case what == "now.json":
		text, err := json.Marshal(s.board.View(-1))
		return made("application/json", text, err)
	}
	return answer{status: "404 Not Found", body: "there is no such page\n"}
}

// made returns the answer that is a text, or why there is none.
func made(kind string, text []byte, err error) answer {
	if err != nil {
		return answer{status: "500 Internal Server Error", body: err.Error() + "\n"}
	}
	return answer{kind: kind, body: string(text)}
}

// events sends a View each second, until the job has ended or the viewer has gone. Source:
// html.spec.whatwg.org, server-sent events.
func (s *Server) events(p *place, r request) {
	if p.answer(r, answer{kind: "text/event-stream", open: true}) != nil || r.method == "HEAD" {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for have, ended := -1.0, false; !ended; {
		v := s.board.View(have)
		have, ended = v.Seconds, v.Ended
		text, err := json.Marshal(v)
		if err != nil {
			return // it holds nothing that JSON has not
		}
		if p.send(fmt.Sprintf("data: %s\n\n", text), writeLimit) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-s.board.changed:
		}
	}
}
