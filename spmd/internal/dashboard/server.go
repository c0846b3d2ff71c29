package dashboard

import (
	"context"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"
)

// What those who look may take of a rank, which must go on undisturbed.
const (
	readLimit   = 5 * time.Second  // to say what they want
	writeLimit  = 10 * time.Second // for an answer, or an event, to be taken
	refuseLimit = time.Second      // for a refusal to be taken
	idleLimit   = time.Minute
	endLimit    = time.Second // for the last events to go out
	every       = time.Second // between two events
)

//go:embed page
var page embed.FS

// Server serves a Board.
type Server struct {
	URL   string // of the page
	board *Board
	token string
	http  http.Server
	done  chan struct{} // closed when nothing is accepted any more
}

// Serve serves a Board until Close. address is as Address has it.
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
	s := &Server{URL: fmt.Sprintf("http://%s/%s/", net.JoinHostPort(host, fmt.Sprint(at.Port)), token), board: b, token: token, done: make(chan struct{})}
	s.http = http.Server{Handler: s, ConnContext: inContext, ReadTimeout: readLimit, IdleTimeout: idleLimit, MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(newPlaces(ln)) // it ends by Close
	}()
	return s, nil
}

// Close tells who looks that the job has ended, and ends.
func (s *Server) Close() error {
	s.board.End()
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) { // somebody does not take the last event
		err = s.http.Close()
	}
	<-s.done
	return err
}

// ServeHTTP answers a request. All addresses begin with the token.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	token, what, folder := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		refuse(w, "the token is missing or wrong: open the address that the log of the job shows", http.StatusForbidden)
		return
	}
	asked(r.Context())
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0 {
		h.Set("Allow", "GET, HEAD")
		refuse(w, "there is nothing to change", http.StatusMethodNotAllowed)
		return
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return // the connection is gone
	}
	switch {
	case !folder:
		http.Redirect(w, r, "/"+s.token+"/", http.StatusMovedPermanently)
	case what == "":
		http.ServeFileFS(w, r, page, "page/page.html")
	case what == "page.css" || what == "page.js":
		http.ServeFileFS(w, r, page, "page/"+what)
	case what == "metrics":
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = s.board.Metrics(w) // who has gone needs none
	case what == "now.json":
		h.Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.board.View(-1))
	case what == "events":
		h.Set("Content-Type", "text/event-stream")
		s.events(w, r)
	default:
		http.NotFound(w, r)
	}
}

// refuse answers that there is nothing for a request, and has its connection closed. What it still has to say is not waited for.
func refuse(w http.ResponseWriter, why string, status int) {
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Now()) != nil || control.SetWriteDeadline(time.Now().Add(refuseLimit)) != nil {
		return // the connection is gone
	}
	w.Header().Set("Connection", "close")
	http.Error(w, why, status)
}

// events sends a View each second, until the job has ended or the viewer has gone.
// Source: html.spec.whatwg.org, server-sent events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Time{}) != nil { // who looks has no more to say
		return // the connection is gone
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
		if err := control.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-s.board.changed:
		case <-r.Context().Done():
			return
		}
	}
}
