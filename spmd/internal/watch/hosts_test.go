package watch

import (
	"slices"
	"testing"
)

func TestHostsOf(t *testing.T) {
	on := func(host string, ranks ...int) (who []Hello) {
		for _, r := range ranks {
			who = append(who, Hello{Rank: r, Host: host})
		}
		return who
	}
	for _, tc := range []struct {
		who  []Hello
		want string
	}{
		{on("a", 3), "rank 3 on a"},
		{append(on("b", 4, 5), on("a", 0, 2)...), "ranks 4-5 on b, ranks 0, 2 on a"},
		{slices.Concat(on("a", 0), on("b", 1), on("c", 2), on("d", 3), on("e", 4, 5), on("f", 6)),
			"rank 0 on a, rank 1 on b, rank 2 on c, rank 3 on d, those on 2 more hosts"},
		{slices.Concat(on("a", 0), on("b", 1), on("c", 2), on("d", 3), on("e", 4, 5)),
			"rank 0 on a, rank 1 on b, rank 2 on c, rank 3 on d, those on 1 more host"},
		{on("\x1b[31m", 1), `rank 1 on \x1b[31m`},
	} {
		if got := hostsOf(tc.who); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
