package dashboard

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/dashboard"
)

const token = "0123456789abcdef-_"

// patience bounds every wait of a test, and measures nothing.
const patience = 10 * time.Minute // only a hang takes so long

func newBoard(ranks int) *dashboard.Board { return dashboard.NewBoard(ranks, time.Now(), time.Now) }

// served serves a board on a free port until the test ends.
func served(t *testing.T, b *dashboard.Board) *server {
	t.Helper()
	s, err := serve(b, "127.0.0.1:0", token)
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var client = &http.Client{Timeout: patience,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// ask asks a server for an address. It returns the answer and its body.
func ask(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	testkit.Must(t, err)
	a, err := client.Do(r)
	testkit.Must(t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	testkit.Must(t, err)
	return a, string(text)
}

// Without the token there is nothing, at any address, and a refusal does not tell the token.
func TestToken(t *testing.T) {
	s := served(t, newBoard(1))
	root := strings.TrimSuffix(s.url, token+"/")
	for _, path := range []string{"", "metrics", "now.json", "events", "page.js", "x/metrics",
		token[1:] + "/", token + "x/", "/" + token + "/", strings.ToUpper(token) + "/metrics", "?token=" + token} {
		a, text := ask(t, "GET", root+path)
		if a.StatusCode != http.StatusForbidden || strings.Contains(text, token) || !strings.Contains(text, "token") {
			t.Errorf("%q: %s: %s", path, a.Status, text)
		}
	}
}

func TestAddresses(t *testing.T) {
	b := newBoard(2)
	b.Hear(&dashboard.Sample{Rank: 1, At: 1, Process: 1001})
	s := served(t, b)
	for path, kind := range map[string]string{"": "text/html", "page.css": "text/css",
		"page.js": "text/javascript", "metrics": "text/plain; version=0.0.4", "now.json": "application/json"} {
		a, text := ask(t, "GET", s.url+path)
		if a.StatusCode != 200 || !strings.HasPrefix(a.Header.Get("Content-Type"), kind) || text == "" {
			t.Errorf("%q: %s, %s, %d bytes", path, a.Status, a.Header.Get("Content-Type"), len(text))
		}
		if !strings.Contains(a.Header.Get("Content-Security-Policy"), "default-src 'none'") ||
			a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%q: %v", path, a.Header)
		}
		if strings.Contains(text, "http://") && path != "page.js" || strings.Contains(text, "https://") {
			t.Errorf("%q names another place", path)
		}
		if a, _ := ask(t, "HEAD", s.url+path); a.StatusCode != 200 {
			t.Errorf("HEAD %q: %s", path, a.Status)
		}
		if a, _ := ask(t, "POST", s.url+path); a.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %q: %s", path, a.Status)
		}
	}
	if a, _ := ask(t, "GET", strings.TrimSuffix(s.url, "/")); a.StatusCode != http.StatusMovedPermanently ||
		a.Header.Get("Location") != "/"+token+"/" {
		t.Errorf("without the last slash: %s to %s", a.Status, a.Header.Get("Location"))
	}
	for _, path := range []string{"x", "page.html", "page/page.js", "../" + token + "/../x"} {
		if a, _ := ask(t, "GET", s.url+path); a.StatusCode != http.StatusNotFound &&
			a.StatusCode != http.StatusForbidden {
			t.Errorf("%q: %s", path, a.Status)
		}
	}
	_, text := ask(t, "GET", s.url+"now.json")
	var v dashboard.View
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.Ranks != 2 || v.Rows[1].Process != 1001 ||
		v.Rows[0].Age != -1 {
		t.Errorf("%v: %s", err, text)
	}
}

// follow returns the events of a server, one for each call.
func follow(t *testing.T, s *server) func() *dashboard.View {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"events", nil)
	testkit.Must(t, err)
	a, err := client.Do(r)
	testkit.Must(t, err)
	t.Cleanup(func() { a.Body.Close() })
	if a.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v", a.Header)
	}
	lines := bufio.NewReader(a.Body)
	return func() *dashboard.View {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		data, ok := strings.CutPrefix(line, "data: ")
		blank, e := lines.ReadString('\n')
		var v dashboard.View
		if bad := json.Unmarshal([]byte(data), &v); err != nil || e != nil || bad != nil || !ok || blank != "\n" {
			t.Fatalf("%q, %q: %v, %v, %v", line, blank, err, e, bad)
		}
		return &v
	}
}

// A viewer gets the past first, then the news, and learns that the job has ended.
func TestEvents(t *testing.T) {
	b := newBoard(1)
	b.Set("loss", 5)
	s := served(t, b)
	next := follow(t, s)
	if v := next(); len(v.Numbers) != 1 || len(v.Numbers[0].Points) != 1 || v.Numbers[0].Points[0][1] != 5 || v.Ended {
		t.Errorf("%+v", v)
	}
	b.Set("loss", 4)
	if v := next(); len(v.Numbers[0].Points) != 1 || v.Numbers[0].Points[0][1] != 4 || v.Numbers[0].Last != 4 {
		t.Errorf("%+v", v)
	}
	ended := make(chan error)
	go func() { ended <- s.Close() }()
	v := next()
	for ; v != nil && !v.Ended; v = next() {
	}
	if v == nil || next() != nil {
		t.Error("the last event does not say that the job has ended")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.DialTimeout("tcp", strings.Split(s.url, "/")[2], patience); err == nil {
		t.Error("the port is still open")
	}
}

// A viewer that takes nothing does not hold up the end of the job.
func TestDeafViewer(t *testing.T) {
	b := newBoard(1)
	s, err := serve(b, "127.0.0.1:0", token)
	testkit.Must(t, err)
	conn, err := net.DialTimeout("tcp", strings.Split(s.url, "/")[2], patience)
	testkit.Must(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /"+token+"/events HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it is being served
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = s.Close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("Close waits")
	}
}

// crowd opens connections that say something and then nothing any more, and take no answer.
func crowd(t *testing.T, s *server, n int, say string) (open []net.Conn) {
	t.Helper()
	for range n {
		conn, err := net.DialTimeout("tcp", strings.Split(s.url, "/")[2], patience)
		testkit.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, say); err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	return open
}

// A request is answered, however many hold a connection and say nothing, with the token or without.
func TestCrowd(t *testing.T) {
	for name, say := range map[string]string{
		"silent":                      "",
		"half a request":              "GET /",
		"a body that does not come":   "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"the same, with the token":    "POST /" + token + "/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"viewers that take no events": "GET /" + token + "/events HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := served(t, newBoard(1))
			crowd(t, s, 100, say)
			for range 3 {
				if a, _ := ask(t, "GET", s.url+"metrics"); a.StatusCode != 200 {
					t.Error(a.Status)
				}
			}
			if v := follow(t, s)(); v == nil {
				t.Error("a viewer gets no event")
			}
		})
	}
}

// A refused connection is closed, though a body was announced.
func TestRefusedIsClosed(t *testing.T) {
	s := served(t, newBoard(1))
	for _, path := range []string{"/", "/" + token + "/metrics"} {
		conn := crowd(t, s, 1, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")[0]
		testkit.Must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		if text, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 40") ||
			!strings.Contains(string(text), "Connection: close") {
			t.Errorf("%s: %v: %s", path, err, text)
		}
	}
}

func TestPortTaken(t *testing.T) {
	s := served(t, newBoard(1))
	if _, err := serve(newBoard(1), strings.Split(s.url, "/")[2], token); err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v", err)
	}
}
