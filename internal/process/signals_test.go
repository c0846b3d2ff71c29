package process

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

var all = []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}

// received sends all signals to this process, and returns those that come.
func received() (names []string) {
	c := make(chan os.Signal, len(all)+1)
	Notify(c, all...)
	last := syscall.SIGCONT // its number is higher than theirs: it comes last
	signal.Notify(c, last)
	runtime.LockOSThread() // which has a signal at once that is sent to it
	for _, s := range append(slices.Clone(all), last) {
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), s)
	}
	for s := range c {
		if s == last {
			slices.Sort(names)
			return names
		}
		names = append(names, unix.SignalName(s.(syscall.Signal)))
	}
	return names
}

// Signals that were ignored before stay so, and the rest arrives.
func TestIgnored(t *testing.T) {
	// Under nohup this process ignores one signal, and so would its children. The children have the
	// default for signals that it catches.
	caught := make(chan os.Signal, 1)
	for _, s := range all {
		signal.Notify(caught, s)
	}
	defer signal.Stop(caught)
	for trap, want := range map[string]string{
		":":                              "SIGHUP SIGINT SIGTERM SIGUSR1 SIGUSR2",
		`trap "" HUP`:                    "SIGINT SIGTERM SIGUSR1 SIGUSR2",
		`trap "" TERM INT`:               "SIGHUP SIGUSR1 SIGUSR2",
		`trap "" HUP INT TERM USR1 USR2`: "",
	} {
		cmd := exec.Command("sh", "-c", trap+`; exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), envSignals+"=1")
		if got, err := cmd.Output(); string(got) != want || err != nil {
			t.Errorf("%s: %q (%v), want %q", trap, got, err, want)
		}
	}
}
