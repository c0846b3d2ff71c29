// Package dashboard gives a program that imports it the flag --dashboard: rank 0 then serves a page
// that shows the run while it goes on, and the same numbers for Prometheus.
//
//	import _ "lockstep/spmd/dashboard"
//
// It brings package net/http and Prometheus' client into the program, some megabytes.
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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep/spmd/internal/dashboard"
)

func init() {
	dashboard.Serve = func(b *dashboard.Board, address, token string) (dashboard.Server, error) {
		s, err := serve(b, address, token)
		if err != nil {
			return nil, err // no interface that holds a nil
		}
		return s, nil
	}
}

// Limits of what viewers may take of a rank, which must go on undisturbed.
const (
	mostHead   = 16 << 10         // bytes of a request
	readLimit  = 5 * time.Second  // to say what they want
	writeLimit = 10 * time.Second // for an answer, or an event, to be taken
	endLimit   = time.Second      // for the last events to go out
	every      = time.Second      // between two events
)

//go:embed page
var page embed.FS

// server serves a board by HTTP.
type server struct {
	board   *dashboard.Board
	token   string
	url     string // of the page
	metrics http.Handler
	http    http.Server
	ended   chan struct{} // closed when nothing is accepted any more
}

// serve serves a board until Close. address is as dashboard.Address returns it.
func serve(b *dashboard.Board, address, token string) (*server, error) {
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
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{b})
	s := &server{board: b, token: token, ended: make(chan struct{}),
		url:     fmt.Sprintf("http://%s/%s/", net.JoinHostPort(host, fmt.Sprint(at.Port)), token),
		metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	s.http = http.Server{Handler: s, ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: readLimit,
		MaxHeaderBytes: mostHead, ErrorLog: log.New(io.Discard, "", 0)} // a viewer's mistake is no news of the job
	go func() {
		_ = s.http.Serve(ln) // it always returns why it has ended: Close
		close(s.ended)
	}()
	return s, nil
}

// URL returns the address of the page.
func (s *server) URL() string { return s.url }

// Close tells the viewers that the job has ended, and ends.
func (s *server) Close() error {
	s.board.End()
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) { // somebody does not take the last event
		err = s.http.Close()
	}
	<-s.ended
	return err
}

// files are what the page is made of: names and kinds, by address.
var files = map[string][2]string{
	"":         {"page.html", "text/html"},
	"page.css": {"page.css", "text/css"},
	"page.js":  {"page.js", "text/javascript"},
}

// ServeHTTP answers a request. All addresses begin with the token.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "+
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	if r.ContentLength != 0 { // no body is read, nor waited for
		if err := http.NewResponseController(w).SetReadDeadline(time.Now()); err != nil {
			return // the connection is gone
		}
	}
	token, what, folder := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	file, isFile := files[what]
	switch {
	case subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1:
		http.Error(w, "the token is missing or wrong: open the address that the log of the job shows",
			http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "there is nothing to change", http.StatusMethodNotAllowed)
	case !folder:
		http.Redirect(w, r, "/"+s.token+"/", http.StatusMovedPermanently)
	case isFile:
		h.Set("Content-Type", file[1]+"; charset=utf-8")
		http.ServeFileFS(w, r, page, "page/"+file[0])
	case what == "metrics":
		s.metrics.ServeHTTP(w, r)
	case what == "now.json":
		h.Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.board.View(-1)) // who has gone needs none
	case what == "events":
		s.events(w, r)
	default:
		http.Error(w, "there is no such page", http.StatusNotFound)
	}
}

// events sends a View each second, until the job has ended or the viewer has gone. Source:
// html.spec.whatwg.org, server-sent events.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	to := http.NewResponseController(w)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for have, ended := -1.0, false; !ended; {
		v := s.board.View(have)
		have, ended = v.Seconds, v.Ended
		text, err := json.Marshal(v)
		if err == nil {
			err = to.SetWriteDeadline(time.Now().Add(writeLimit))
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", text)
		}
		if err != nil || to.Flush() != nil {
			return // the viewer has gone, or takes nothing
		}
		select {
		case <-tick.C:
		case <-s.board.Ended():
		case <-r.Context().Done():
			return
		}
	}
}
