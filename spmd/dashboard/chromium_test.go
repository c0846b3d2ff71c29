package dashboard

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// browser is a headless Chromium, and one page in it, by the protocol of its developer tools over
// pipes. Source: chromedevtools.github.io/devtools-protocol; chrome/browser/devtools,
// --remote-debugging-pipe.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string

	mu      sync.Mutex
	sent    int
	answers map[int]chan reply
	events  []event
	gone    chan struct{} // closed when nothing comes any more
}

// reply is the result of a command.
type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// event is a message that the page sends by itself.
type event struct {
	Method string
	Params json.RawMessage
}

// chromium is the program; "" if there is none.
func chromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// browse starts a browser with an empty page.
func browse(t *testing.T) *browser {
	t.Helper()
	program := chromium()
	if program == "" {
		t.Skip("chromium is not installed: apt-get install chromium, or make test-page")
	}
	toThem, to, err := os.Pipe()
	testkit.Must(t, err)
	from, fromThem, err := os.Pipe()
	testkit.Must(t, err)
	dir, err := os.MkdirTemp("", "lockstep-chromium")
	testkit.Must(t, err)
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--user-data-dir="+dir, "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toThem, fromThem} // descriptors 3 and 4
	testkit.Must(t, cmd.Start())
	toThem.Close()
	fromThem.Close()
	b := &browser{t: t, to: to, answers: map[int]chan reply{}, gone: make(chan struct{})}
	go b.read(bufio.NewReader(from))
	t.Cleanup(func() {
		b.send("Browser.close", nil)
		select {
		case <-b.gone:
		case <-time.After(patience):
			_ = cmd.Process.Kill() // its end is reported below
		}
		_ = cmd.Wait() // headless, its status says nothing
		to.Close()
		from.Close()
		_ = os.RemoveAll(dir) // a process of it may still write there
	})
	var made struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	var joined struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &joined)
	b.session = joined.SessionID
	for _, part := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(part+".enable", nil, nil)
	}
	return b
}

// read takes the browser's messages, until it ends.
func (b *browser) read(from *bufio.Reader) {
	defer close(b.gone)
	for {
		text, err := from.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID int
			event
			reply
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			return
		}
		b.mu.Lock()
		if m.ID == 0 {
			b.events = append(b.events, m.event)
		} else if to := b.answers[m.ID]; to != nil {
			to <- m.reply
		}
		b.mu.Unlock()
	}
}

// send sends a command, whose reply comes over the channel.
func (b *browser) send(method string, params any) chan reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent++
	m := map[string]any{"id": b.sent, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" && method != "Browser.close" {
		m["sessionId"] = b.session
	}
	answer := make(chan reply, 1)
	b.answers[b.sent] = answer
	text, err := json.Marshal(m)
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	if err != nil {
		b.t.Errorf("%s: %v", method, err)
	}
	return answer
}

// call sends a command and waits for its result.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	select {
	case r := <-b.send(method, params):
		if r.Error != nil {
			b.t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-b.gone:
		b.t.Fatalf("%s: the browser has ended", method)
	case <-time.After(2 * patience):
		b.t.Fatalf("%s: no answer", method)
	}
}

// eval runs JavaScript in the page, waits for its promise, and sets *to to its value.
func (b *browser) eval(code string, to any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	b.call("Runtime.evaluate", map[string]any{"expression": code, "awaitPromise": true, "returnByValue": true}, &r)
	if e := r.ExceptionDetails; e != nil {
		b.t.Fatalf("%.100s: %s %s", code, e.Text, e.Exception.Description)
	}
	if to != nil {
		if err := json.Unmarshal(r.Result.Value, to); err != nil {
			b.t.Fatalf("%.100s: %v", code, err)
		}
	}
}

// until waits until JavaScript is true in the page.
func (b *browser) until(what string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`new Promise((well, bad) => {
		const since = Date.now();
		const look = () => {
			if (%s) well(true);
			else if (Date.now() - since > %d) bad(new Error("never so"));
			else setTimeout(look, 20);
		};
		look();
	})`, what, patience.Milliseconds()), nil)
}

// told returns the events of some kinds that have come.
func (b *browser) told(methods ...string) (list []event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		for _, m := range methods {
			if e.Method == m {
				list = append(list, e)
			}
		}
	}
	return list
}
