package testkit

import (
	"bytes"
	"strings"
	"sync"
)

// Transcript is what a program has written so far. Started, if it is not nil, is called with each
// text.
type Transcript struct {
	Started func()

	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed by the next text
}

func (t *Transcript) Write(b []byte) (int, error) {
	if t.Started != nil {
		t.Started()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	return t.text.Write(b)
}

func (t *Transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Wait returns when text was written, or false when the program ended before.
func (t *Transcript) Wait(text string, ended <-chan struct{}) bool {
	for {
		t.mu.Lock()
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		said, changed := strings.Contains(t.text.String(), text), t.changed
		t.mu.Unlock()
		if said {
			return true
		}
		select {
		case <-changed:
		case <-ended:
			return strings.Contains(t.String(), text)
		}
	}
}
