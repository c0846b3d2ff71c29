package stdio

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

const envTold = "LOCKSTEP_STDIO_TEST"

func TestMain(m *testing.M) {
	if path := os.Getenv(envTold); path != "" { // in place of standard streams that may be closed
		_, out := fmt.Fprint(os.Stdout, "x")
		_, err := fmt.Fprint(os.Stderr, "x")
		if os.WriteFile(path, fmt.Append(nil, out == nil, err == nil), 0o666) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Writing to a stream that was closed at the start is an error. Writing to /dev/null is none.
func TestClosed(t *testing.T) {
	for redirect, want := range map[string]string{
		"": "true true", ">&-": "false true", "2>&-": "true false", ">&- 2>&-": "false false",
		">/dev/null 2>/dev/null": "true true", ">/dev/full 2>&-": "false false",
	} {
		path := t.TempDir() + "/told"
		cmd := exec.Command("sh", "-c", `"$0" `+redirect, os.Args[0])
		cmd.Env = append(os.Environ(), envTold+"="+path)
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", redirect, err)
		}
		if got, err := os.ReadFile(path); string(got) != want || err != nil {
			t.Errorf("%s: standard output and error can be written: %s (%v), want %s", redirect, got, err, want)
		}
	}
}
