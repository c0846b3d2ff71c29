package process

// #include "signals.h"
import "C"

import (
	"os"
	"os/signal"
	"syscall"
)

// Go's runtime and os/signal would take over signals that were ignored.
func init() {
	for _, s := range []syscall.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if Ignored(s) {
			signal.Ignore(s)
		}
	}
}

// Ignored reports whether a signal was ignored when the process started.
func Ignored(s syscall.Signal) bool { return C.ignored_at_start()>>s&1 != 0 }

// Notify is signal.Notify, without the signals that are to stay ignored.
func Notify(c chan<- os.Signal, sigs ...syscall.Signal) {
	for _, s := range sigs {
		if !Ignored(s) {
			signal.Notify(c, s)
		}
	}
}
