package main

import (
	"os"
	"strings"
	"testing"

	"lockstep/bench/measure"
	"lockstep/bench/sweep"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// A group that failed keeps the rows that were not measured again. The groups stay in their order.
func TestMerge(t *testing.T) {
	old := []measure.Row{{Bench: "watch", What: "a"}, {Bench: "reduce", What: "b"}, {Bench: "reduce", What: "c"},
		{Bench: "train", What: "d"}}
	for _, tc := range []struct {
		name     string
		measured []measure.Row
		whole    bool
		want     string
	}{
		{"reduce", []measure.Row{{Bench: "reduce", What: "c", Ours: 1}}, true, "a0 c1 d0"},
		{"reduce", []measure.Row{{Bench: "reduce", What: "c", Ours: 1}}, false, "a0 b0 c1 d0"},
		{"reduce", nil, false, "a0 b0 c0 d0"},
		{"matvec", []measure.Row{{Bench: "matvec", What: "e", Ours: 1}}, true, "a0 b0 c0 e1 d0"},
	} {
		got := ""
		for _, r := range merge(old, tc.measured, tc.name, tc.whole) {
			got += " " + r.What + string('0'+rune(r.Ours))
		}
		if got != " "+tc.want {
			t.Errorf("%s, whole %v: rows%s, want %s", tc.name, tc.whole, got, tc.want)
		}
	}
}

// A program that prints no measurement is named, and the message is well formed without an error.
func TestNoPoint(t *testing.T) {
	if _, err := onePoint([]string{"true"}); err == nil || err.Error() != `[true]: 0 lines of JSON, want 1, in ""` {
		t.Error(err)
	}
}

// An unknown command is refused: without a command everything would be measured, which
// takes an hour.
func TestUnknownCommand(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	for command, run := range map[string]func() error{
		"bench": runner, "bench sweep": sweep.Command, "bench train": trainCommand, "bench loss": lossCommand,
		"bench ttl": ttlCommand,
	} {
		os.Args = []string{"bench", "foo"}
		err := run()
		if err == nil || !strings.HasPrefix(err.Error(), `unknown command or argument "foo": `+command+" --help ") {
			t.Errorf("%s: %v", command, err)
		}
	}
}
