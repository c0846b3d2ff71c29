package watch

import (
	"fmt"
	"strings"

	"lockstep/internal/readable"
)

// hostsOf names ranks by their hosts: "ranks 2-3 on h1, rank 5 on h2".
func hostsOf(ranks []Hello) string {
	const shown = 4 // hosts
	var hosts []string
	on := map[string][]int{}
	for _, r := range ranks {
		if on[r.Host] == nil {
			hosts = append(hosts, r.Host)
		}
		on[r.Host] = append(on[r.Host], r.Rank)
	}
	var parts []string
	for _, host := range hosts[:min(shown, len(hosts))] {
		parts = append(parts, readable.Ranks(on[host])+" on "+readable.Line(host))
	}
	if more := len(hosts) - shown; more > 0 {
		word := "hosts"
		if more == 1 {
			word = "host"
		}
		parts = append(parts, fmt.Sprintf("those on %d more %s", more, word))
	}
	return strings.Join(parts, ", ")
}
