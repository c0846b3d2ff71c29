package process

import (
	"os"
	"os/exec"
	"testing"
)

// Writing to a stream that was closed at the start is an error. Writing to /dev/null is none.
func TestClosed(t *testing.T) {
	for redirect, want := range map[string]string{
		"": "true true", ">&-": "false true", "2>&-": "true false", ">&- 2>&-": "false false",
		">/dev/null 2>/dev/null": "true true", ">/dev/full 2>&-": "false false",
	} {
		path := t.TempDir() + "/told"
		cmd := exec.Command("sh", "-c", `"$0" `+redirect, os.Args[0])
		cmd.Env = append(os.Environ(), envStreams+"="+path)
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", redirect, err)
		}
		if got, err := os.ReadFile(path); string(got) != want || err != nil {
			t.Errorf("%s: standard output and error can be written: %s (%v), want %s", redirect, got, err, want)
		}
	}
}
