package dashboard

import (
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{":8080": "127.0.0.1:8080", "0.0.0.0:0": "0.0.0.0:0",
		"[::1]:65535": "[::1]:65535", "node7:80": "node7:80"} {
		if got, err := Address(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "8080", ":", ":http", ":-1", ":65536", ":080", "::1:80", "a b:80",
		"http://x:80", ":80/x"} {
		if got, err := Address(bad); err == nil || !strings.Contains(err.Error(), "want [HOST]:PORT") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %s, %v", bad, got, err)
		}
	}
}

func TestGivenToken(t *testing.T) {
	a, err := Token("")
	b, e := Token("")
	if err != nil || e != nil || a == b || len(a) < 22 {
		t.Errorf("%s, %s, %v, %v", a, b, err, e)
	}
	if _, err := Token(a); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"short", "0123456789abcde/", "0123456789abcdef ", "0123456789abcdeé"} {
		if _, err := Token(bad); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
