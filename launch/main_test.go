package main

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

// patience is how long anything may take: only a hang takes so long.
const patience = 10 * time.Minute

// TestMain makes this binary one of the programs that tests start, if its environment says so.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(slurmRankEnv) != "":
		slurmRankMain()
		return
	case os.Getenv(hostRankEnv) != "":
		hostRankMain()
		return
	case heatMain():
		return
	}
	flag.Parse()
	if os.Getenv(hostsEnv) != "" { // its tests mostly wait
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err)
		}
	}
	status := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // of no matter if it stays
	}
	if err := stopSlurm(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// A command that does not exist is bad input: one line, with the one that was probably meant.
func TestUnknownCommand(t *testing.T) {
	for typed, want := range map[string]string{
		"rnu":   `unknown command "rnu"; did you mean run?`,
		"docto": `unknown command "docto"; did you mean doctor?`,
		"xyzzy": `unknown command "xyzzy": launch --help lists all`,
	} {
		root := command()
		root.SetArgs([]string{typed, "--steps", "3"})
		if code, say, err := run(root); code != 2 || !say || err.Error() != want {
			t.Errorf("%s: status %d, %v, %q, want %q", typed, code, say, err, want)
		}
	}
}
