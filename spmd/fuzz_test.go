package spmd

import (
	"maps"
	"strconv"
	"strings"
	"testing"

	"lockstep/internal/watch"
)

// FuzzParseRanks writes what it reads as a plain list and reads it again.
func FuzzParseRanks(f *testing.F) {
	for _, list := range []string{"", "all", "0", "0,3,8-11", "3-1", "-1", "1-", "+5", "0-1048575", "0-1048576", "7,7", "0x1"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		ranks, err := parseRanks(list)
		if err != nil {
			if ranks != nil || !strings.Contains(err.Error(), "--log-ranks") {
				t.Errorf("%q: %d ranks and error %v", list, len(ranks), err)
			}
			return
		}
		if (ranks == nil) != (list == "all") || ranks != nil && len(ranks) == 0 || len(ranks) > 1<<20 {
			t.Fatalf("%q: %d ranks, nil is %v", list, len(ranks), ranks == nil)
		}
		if ranks == nil || len(ranks) > 1000 {
			return
		}
		var plain []string
		for r := range ranks {
			plain = append(plain, strconv.Itoa(r))
		}
		again, err := parseRanks(strings.Join(plain, ","))
		if err != nil || !maps.Equal(again, ranks) {
			t.Errorf("%q: ranks %v, read again %v (%v)", list, ranks, again, err)
		}
	})
}

// Lists that would take memory and time without end.
func TestAbsurdRanks(t *testing.T) {
	for _, list := range []string{
		"9223372036854775807", "9223372036854775806-9223372036854775807", "0-9223372036854775807", "1048576",
		"0-1048575,0", strings.Repeat("0-1048575,", 2) + "1", "99999999999999999999",
	} {
		if ranks, err := parseRanks(list); err == nil {
			t.Errorf("%s: %d ranks, want an error", list, len(ranks))
		}
	}
	if ranks, err := parseRanks("0-1048575"); err != nil || len(ranks) != 1<<20 {
		t.Errorf("%d ranks, %v, want 2^20", len(ranks), err)
	}
}

// What a rank's pulse holds does not end rank 0, which compares it.
func FuzzPulse(f *testing.F) {
	f.Add([]byte(`{"p":[{"c":"world","l":[[1,2]],"r":[{"n":1,"s":2,"t":"at a.go:1: Barrier"}]}]}`), []byte(`{"p":[{"c":"world","l":[[1,3]],"r":[{"n":1,"s":3,"t":"x"}]}]}`))
	f.Add([]byte(`{"p":[{"c":"w","l":[[1,2]]}]}`), []byte(`{"p":[{"c":"w","l":[[1,3]]}]}`))
	f.Add([]byte(`{"s":{"e":true,"c":[{"c":"w","r":1}]}}`), []byte(`{"s":{"c":[{"c":"w","n":3,"i":"x","p":[{"Peer":1,"Sent":2,"Received":4000000000}]}]}}`))
	f.Add([]byte(`null`), []byte(`{"p":[{},{}],"s":{}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var seen library
		seen.compare(0, a)
		seen.compare(1, b)
		seen.compare(0, b)
		seen.stuck(0)
	})
}

// What ranks say of themselves can be shown, whatever it is.
func FuzzRenderReport(f *testing.F) {
	f.Add([]byte(`{"phase":"running","comms":[{"id":"world","entered":3,"left":2,"calls":3,"last":"Barrier"}],"run":{"at":"a.go:1","stack":["x"]}}`), "T (stopped)")
	f.Add([]byte(`{"comms":[{"id":"w","entered":1,"alone":true}],"streams":[{"name":"s","waiting":-1,"command":"c","device":true}]}`), "")
	f.Add([]byte(`[]`), "\x1b")
	f.Fuzz(func(t *testing.T, state []byte, proc string) {
		states := []watch.RankState{
			{Hello: watch.Hello{Rank: 0}, State: state},
			{Hello: watch.Hello{Rank: 1}, ProcState: proc, Silent: true},
			{Hello: watch.Hello{Rank: 2}, State: state},
		}
		for _, asJSON := range []bool{false, true} {
			if text := renderReport("a test", states, asJSON); !strings.HasSuffix(text, "\n") {
				t.Errorf("a report of %q", text)
			}
		}
	})
}
