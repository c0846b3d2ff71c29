package process

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// These make a process of this test program say what it meets, in place of tests.
const (
	envSignals = "LOCKSTEP_PROCESS_SIGNALS"
	envStreams = "LOCKSTEP_PROCESS_STREAMS" // into this file
)

func TestMain(m *testing.M) {
	if os.Getenv(envSignals) != "" {
		os.Stdout.WriteString(strings.Join(received(), " "))
		os.Exit(0)
	}
	if path := os.Getenv(envStreams); path != "" { // in place of standard streams that may be closed
		_, out := fmt.Fprint(os.Stdout, "x")
		_, err := fmt.Fprint(os.Stderr, "x")
		if os.WriteFile(path, fmt.Append(nil, out == nil, err == nil), 0o666) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
