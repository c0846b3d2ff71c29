package job

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"lockstep/internal/readable"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/watch"
)

// rankState is the state of a rank, and the rank's own words.
type rankState struct {
	watch.RankState
	said State
}

// The asJSON of Render.
const AsText, AsJSON = false, true

// Render says what hangs. First it lists, for each communicator, the ranks that have not arrived
// where others wait. Then it says what every rank does; ranks that do the same stand together. As
// JSON it is one line with all words of the ranks.
func Render(what string, states []watch.RankState, asJSON bool) string {
	if asJSON {
		if line, err := json.Marshal(map[string]any{"report": what, "ranks": states}); err == nil {
			return string(line) + "\n"
		}
	}
	ranks := readStates(states)
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n", what)
	for _, id := range commIDs(ranks) {
		b.WriteString(missing(id, ranks))
	}
	type group struct {
		text  string
		ranks []int
	}
	var groups []group
	for i := range ranks {
		text := ranks[i].doing()
		if at := slices.IndexFunc(groups, func(g group) bool { return g.text == text }); at >= 0 {
			groups[at].ranks = append(groups[at].ranks, ranks[i].Hello.Rank)
			continue
		}
		groups = append(groups, group{text, []int{ranks[i].Hello.Rank}})
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "%s (%s): %s", readable.Ranks(g.ranks), processes(g.ranks, ranks), g.text)
	}
	b.WriteString("---\n")
	return b.String()
}

// processes says where some of the ranks are: "host a, pid 7", or "host a, pids 7-9; host b, pid
// 3".
func processes(some []int, ranks []rankState) string {
	const shown = 4 // hosts
	var hosts []string
	pids := map[string][]int{}
	for _, t := range ranks {
		if !slices.Contains(some, t.Hello.Rank) {
			continue
		}
		if pids[t.Host] == nil {
			hosts = append(hosts, t.Host)
		}
		pids[t.Host] = append(pids[t.Host], t.PID)
	}
	var parts []string
	for _, host := range hosts[:min(shown, len(hosts))] {
		word := "pids"
		if len(pids[host]) == 1 {
			word = "pid"
		}
		parts = append(parts, fmt.Sprintf("host %s, %s %s", host, word, readable.Ranges(pids[host], ", ")))
	}
	if more := len(hosts) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func readStates(states []watch.RankState) []rankState {
	var ranks []rankState
	for _, s := range states {
		t := rankState{RankState: s}
		if json.Unmarshal(s.State, &t.said) != nil {
			t.said = State{} // the report shows that it did not answer
		}
		ranks = append(ranks, t)
	}
	return ranks
}

// slow finds the first rank that waits for files, while all ranks answer; nil if no rank does.
func slow(ranks []rankState) (first *rankState) {
	for i := range ranks {
		t := &ranks[i]
		if t.State == nil && !t.Left {
			return nil
		}
		if first == nil && t.said.Files != nil && t.said.Files.Waits {
			first = t
		}
	}
	return first
}

// commIDs are the communicators in which a rank waits, in order of their names.
func commIDs(ranks []rankState) []string {
	var ids []string
	for _, t := range ranks {
		for _, c := range t.said.Comms {
			if c.waits() && !slices.Contains(ids, c.ID) {
				ids = append(ids, c.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// missing says which ranks of a communicator have not arrived where the furthest rank waits for
// all, and which ranks wait for a message.
func missing(id string, ranks []rankState) string {
	var furthest uint64
	what, place := "", ""
	for _, t := range ranks {
		for _, c := range t.said.Comms {
			if c.ID == id && c.waits() && !c.Alone && c.Calls > furthest {
				furthest, what, place = c.Calls, c.Last, c.place()
			}
		}
	}
	var in, out []int
	var b strings.Builder
	for _, t := range ranks {
		rank := t.Hello.Rank
		i := slices.IndexFunc(t.said.Comms, func(c CommState) bool { return c.ID == id })
		if i < 0 {
			if t.State == nil || t.Silent {
				out = append(out, rank) // it did not answer
			}
			continue
		}
		switch c := &t.said.Comms[i]; {
		case c.waits() && c.Alone:
			out = append(out, rank)
			fmt.Fprintf(&b, "  rank %d waits in %s\n", rank, c.place())
		case c.Calls < furthest && id == control.ID:
			out = append(out, rank)
		case c.Calls < furthest:
			out = append(out, rank)
			fmt.Fprintf(&b, "  rank %d is at call %d", rank, c.Calls)
			if c.Last != "" {
				b.WriteString(": " + c.place())
			}
			b.WriteByte('\n')
		case c.waits() && c.Last != what:
			fmt.Fprintf(&b, "  rank %d calls something else: %s\n", rank, c.place())
		default:
			in = append(in, rank)
		}
	}
	if furthest == 0 {
		return fmt.Sprintf("on %q some ranks wait for messages:\n%s", id, b.String())
	}
	head := fmt.Sprintf("call %d on %q, %s: %s in it", furthest, id, place, readable.Ranks(in))
	if id == control.ID {
		head = fmt.Sprintf("%s: %s in it", place, readable.Ranks(in))
	}
	if len(out) > 0 {
		head += "; NOT ARRIVED: " + readable.Ranks(out)
	}
	return head + "\n" + b.String()
}

// refusals says what ranks were refused shortly before the cause of a job's end.
func refusals(cause string, states []watch.RankState) (more string) {
	for _, t := range readStates(states) {
		for _, c := range t.said.Comms {
			if _, why, ok := strings.Cut(c.Refused, ": "); ok && !strings.Contains(cause+more, why) {
				more += fmt.Sprintf("; rank %d %s", t.Hello.Rank, c.Refused)
			}
		}
	}
	return more
}

// waits reports whether a call is not over.
func (c *CommState) waits() bool { return c.Entered > c.Left }

// place returns the last call, with its place if that is known.
func (c *CommState) place() string {
	if c.At == "" {
		return c.Last
	}
	return c.Last + " " + c.At
}

// doing says what a rank does. Ranks that do the same have the same text, so it names neither rank
// nor process.
func (t *rankState) doing() string {
	switch {
	case t.Died:
		return "died\n"
	case t.Left:
		return "has ended in order\n"
	case t.State == nil:
		s := "does not answer"
		if t.ProcState != "" {
			s += "; its process is " + t.ProcState
		}
		if t.Note != "" {
			s += " (" + t.Note + ")"
		}
		return s + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s", t.said.Phase)
	if t.said.Run.At != "" {
		fmt.Fprintf(&b, ", at %s [%s]", t.said.Run.At, t.said.Run.State)
	}
	b.WriteByte('\n')
	for _, q := range t.said.Streams {
		wait, run := "commands wait", " or run"
		if q.Waiting == 1 {
			wait, run = "command waits", " or runs"
		}
		fmt.Fprintf(&b, "    stream %q: %d %s", q.Name, q.Waiting, wait)
		switch {
		case q.Command != "" && q.Device:
			fmt.Fprintf(&b, run+", the first collective is %s %s", q.Command, q.At)
		case q.Command != "":
			fmt.Fprintf(&b, ", the first is %s %s", q.Command, q.At)
		}
		b.WriteByte('\n')
	}
	if t.said.Files != nil {
		fmt.Fprintf(&b, "    %v\n", t.said.Files)
	}
	for _, frame := range t.said.Run.Stack {
		fmt.Fprintf(&b, "    %s\n", frame)
	}
	for _, g := range t.said.Others {
		fmt.Fprintf(&b, "    another goroutine at %s [%s]\n", g.At, g.State)
	}
	return b.String()
}
