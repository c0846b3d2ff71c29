package plan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	aliveTime = 15 * time.Second // that a host may take to answer
	askedOnce = 32               // hosts asked at a time
)

// leaveOut returns the job on the hosts that answer. It asks each by itself. Errors are cli.Usage
// if too few are left.
func (s *supervisor) leaveOut(ctx context.Context) (job, error) {
	j := s.job
	if len(j.hosts) == 0 {
		var err error
		if j.hosts, err = allocatedHosts(s.site, j.most); err != nil {
			return j, err
		}
	}
	if len(j.hosts) == 1 {
		return j, nil
	}
	known := make([]facts, len(j.hosts))
	failed := make([]error, len(j.hosts))
	free := make(chan struct{}, askedOnce)
	var asking sync.WaitGroup
	for i, h := range j.hosts {
		asking.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			known[i], failed[i] = s.ask(ctx, j, h)
		})
	}
	asking.Wait()
	if err := ctx.Err(); err != nil {
		return j, err
	}
	all := len(j.hosts)
	var left []host
	var answers []facts
	var without, why []string
	for i, h := range j.hosts {
		if failed[i] == nil {
			left, answers = append(left, h), append(answers, known[i])
			continue
		}
		without = append(without, h.name)
		why = append(why, fmt.Sprintf("%s is left out: %v", h.name, failed[i]))
	}
	if j.nodes < len(left) { // of an allocation not all are asked for
		left, answers = left[:j.nodes], answers[:j.nodes]
	}
	j = j.on(left, s.site)
	if j.ranks < s.minRanks || len(left) == 0 {
		return j, usage("%d of %d hosts can be used, for %d ranks, and --min-ranks is %d (%s)",
			len(left), all, j.ranks, s.minRanks, strings.Join(why, "; "))
	}
	switch {
	case len(without) > 0:
		fmt.Fprintf(os.Stderr, "launch: %s; %d of %d ranks start\n", strings.Join(why, "; "), j.ranks, s.job.ranks)
	case len(s.without) > 0:
		fmt.Fprintf(os.Stderr, "launch: %s can be used again: all %d ranks start\n",
			strings.Join(s.without, ", "), j.ranks)
	}
	s.without = without
	if s.noPreflight {
		return j, nil
	}
	return j, judge(j.prog[0], answers)
}

// ask returns what one host says about the program. A host that does not answer, or lacks the
// program, is an error.
func (s *supervisor) ask(ctx context.Context, j job, h host) (facts, error) {
	if s.launcher.name != "slurm" && j.agent == "" {
		if err := resolves(h.name); err != nil {
			return facts{}, err
		}
	}
	known, err := askHosts(ctx, s.launcher, j.on([]host{h}, s.site), s.site, aliveTime)
	switch {
	case err != nil:
		return facts{}, err
	case known[0].Error != "":
		return facts{}, errors.New(known[0].Error)
	}
	return known[0], nil
}

// on returns the job on some of its hosts, on as many ranks as they have slots.
func (j job) on(hosts []host, s site) job {
	if len(hosts) < len(j.hosts) {
		slots := 0
		j.most, j.even = 0, true
		for _, h := range hosts {
			slots += h.slots
			j.most = max(j.most, h.slots)
			j.even = j.even && h.slots == hosts[0].slots
		}
		j.ranks = min(j.ranks, slots)
		j.most = min(j.most, j.ranks)
	}
	j.hosts, j.nodes = hosts, len(hosts)
	j.here = len(hosts) == 1 && j.agent == "" && (hosts[0].name == "localhost" || hosts[0].name == s.name)
	return j
}

// allocatedHosts lists the hosts of this process's Slurm allocation, each with so many slots.
func allocatedHosts(s site, slots int) ([]host, error) {
	text := ask("scontrol", "show", "hostnames", s.getenv("SLURM_JOB_NODELIST"))
	var hosts []host
	for _, name := range strings.Fields(text) {
		hosts = append(hosts, host{name, slots})
	}
	if len(hosts) == 0 {
		return nil, usage("scontrol show hostnames %s lists no host: name them with -H for --min-ranks",
			s.getenv("SLURM_JOB_NODELIST"))
	}
	return hosts, nil
}
