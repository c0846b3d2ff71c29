package route

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"lockstep/spmd/internal/transport"
)

// backend is one that is nothing but what can be asked before a device is open.
type backend struct {
	name  string
	lacks error
	joins bool
}

func (b backend) Name() string               { return b.name }
func (b backend) Probe(transport.Host) error { return b.lacks }
func (b backend) Joins() bool                { return b.joins }
func (b backend) Open(transport.Site) (transport.Opened, error) {
	return nil, errors.New("not to be opened")
}

// TestSelect: all ranks take the backend that is asked for, or the first that every rank can
// use, and know why not another.
func TestSelect(t *testing.T) {
	const rail, lane = "rank 1: no rail", "rank 2: no lane"
	lacks := func(rank, of int, what string) error {
		if rank != of {
			return nil
		}
		return errors.New(what)
	}
	for _, tc := range []struct {
		name          string
		noRail        int // the rank without; of others all have it
		noLane        int
		asked         string
		want          string
		passed, lacks string
		failure       string
	}{
		{"the first", -1, -1, "auto", "rail", "", "", ""},
		{"the second", 1, -1, "auto", "lane", "RAIL is not used: " + rail, "", ""},
		{"none", 1, 2, "auto", "", "", "",
			"--collectives auto: RAIL is not used: " + rail + "; LANE is not used: " + lane},
		{"the second is asked for", -1, -1, "lane", "lane", "", "", ""},
		{"what a rank lacks is asked for", 1, -1, "rail", "", "", rail, ""},
		{"what a rank lacks is not asked for", 1, -1, "lane", "lane", "", "", ""},
	} {
		err := transport.RunTeam(3, func(c *transport.Member) error {
			list := []transport.Backend{backend{"rail", lacks(c.Rank(), tc.noRail, "no rail"), true},
				backend{"lane", lacks(c.Rank(), tc.noLane, "no lane"), true}}
			s, err := choose(list, c, tc.asked)
			got, lacking := "", ""
			if err == nil && s.Lacking == nil {
				got = s.Backend.Name()
			}
			if s.Lacking != nil {
				lacking = s.Lacking.Error()
			}
			if err != nil && err.Error() != tc.failure || err == nil && tc.failure != "" {
				return fmt.Errorf("fails with %v, want %q", err, tc.failure)
			}
			if got != tc.want || s.Passed != tc.passed && err == nil || lacking != tc.lacks {
				return fmt.Errorf("takes %q, since %q, lacks %q; want %q, %q, %q",
					got, s.Passed, lacking, tc.want, tc.passed, tc.lacks)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestManyQueues: streams that wait for the host are kept apart, in as
// many queues as the user says.
func TestManyQueues(t *testing.T) {
	const name = "CUDA_DEVICE_MAX_CONNECTIONS"
	for _, tc := range []struct {
		joins     bool
		set, want string
	}{{true, "", ""}, {false, "", "32"}, {false, "8", "8"}} {
		t.Setenv(name, tc.set)
		if err := transport.RunTeam(1, func(c *transport.Member) error {
			_, err := choose([]transport.Backend{backend{name: "rail", joins: tc.joins}}, c, "auto")
			return err
		}); err != nil {
			t.Error(err)
		}
		if got := os.Getenv(name); got != tc.want {
			t.Errorf("%q before, joins %v: %q, want %q", tc.set, tc.joins, got, tc.want)
		}
	}
}

// TestRegistry: names are values of --collectives, and differ.
func TestRegistry(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range Names() {
		if name == "" || seen[name] {
			t.Errorf("%q is no name of its own among %q", name, Names())
		}
		seen[name] = true
	}
	for name, want := range map[string]bool{
		"auto": false, "nccl": true, "mpi": false, "host-staged": true, "mpi-fast": false,
	} {
		if got := ForDevicesOnly(name); got != want {
			t.Errorf("%s carries memory of devices only: %v, want %v", name, got, want)
		}
	}
}
