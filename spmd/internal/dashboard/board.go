package dashboard

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	window      = 10 * time.Second // over which shares of time are shown
	keep        = 12               // samples of a rank
	mostShown   = 64               // ranks on the page; /metrics has all
	mostRegions = 6                // regions on the page
	// A rank is the slowest if its share of time in which it waits for others is less than
	// another's by so much.
	clearly = 0.02
)

// Board keeps the samples of a job's ranks, on rank 0. Any goroutine may call its methods.
type Board struct {
	facts   Facts
	started time.Time
	now     func() time.Time

	mu      sync.Mutex
	ranks   []history
	numbers []*series
	ended   bool
	changed chan struct{} // closed when the job has ended
}

// history is the last samples of a rank, the oldest first.
type history struct {
	samples []*Sample
	heard   time.Time // when the last one came
}

// NewBoard returns the board of a job of some ranks, that started at a time of a clock.
func NewBoard(ranks int, started time.Time, now func() time.Time) *Board {
	return &Board{facts: Facts{Ranks: ranks}, started: started, now: now, ranks: make([]history, ranks),
		changed: make(chan struct{})}
}

// Describe sets the facts that do not change about the job.
func (b *Board) Describe(f Facts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.Ranks = len(b.ranks)
	b.facts = f
}

// Hear takes a sample. It leaves out samples of no rank of the job.
func (b *Board) Hear(s *Sample) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s == nil || s.Rank < 0 || s.Rank >= len(b.ranks) {
		return
	}
	h := &b.ranks[s.Rank]
	if n := len(h.samples); n > 0 && s.At <= h.samples[n-1].At {
		return
	}
	h.heard = b.now()
	if len(h.samples) == keep {
		h.samples = slices.Delete(h.samples, 0, 1)
	}
	h.samples = append(h.samples, s)
}

// Set gives a number of the program its present value. It leaves out values that are not finite.
func (b *Board) Set(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.numbers, func(s *series) bool { return s.name == name })
	if i < 0 {
		if len(b.numbers) == mostNumbers {
			return
		}
		i, b.numbers = len(b.numbers), append(b.numbers, &series{name: name})
	}
	b.numbers[i].add(b.now().Sub(b.started).Seconds(), value)
}

// End says that the job has ended.
func (b *Board) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended = true
		close(b.changed)
	}
}

// Ended returns a channel that is closed when the job has ended.
func (b *Board) Ended() <-chan struct{} { return b.changed }

// Now is all that is known of the ranks at one time.
type Now struct {
	Facts
	Seconds float64  // since the start
	Numbers []Number // without points
	Heard   []Heard  // ranks that have told of themselves
	Hosts   []Host
}

// Heard is the latest sample of a rank.
type Heard struct {
	*Sample
	Age float64 // seconds since it came
}

// Now returns all that is known of the ranks.
func (b *Board) Now() *Now {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.now()
	n := &Now{Facts: b.facts, Seconds: at.Sub(b.started).Seconds(), Hosts: b.hosts()}
	for _, s := range b.numbers {
		n.Numbers = append(n.Numbers, Number{Name: s.name, Last: s.last.value})
	}
	for r := range b.ranks {
		if s := b.ranks[r].last(); s != nil {
			n.Heard = append(n.Heard, Heard{s, at.Sub(b.ranks[r].heard).Seconds()})
		}
	}
	return n
}

// View is the contents of the page.
type View struct {
	Facts
	Seconds float64  `json:"seconds"` // since the start
	Ended   bool     `json:"ended"`
	Window  float64  `json:"window"` // seconds over which shares are
	Numbers []Number `json:"numbers"`
	Phases  []string `json:"phases"`  // that some rank is in
	Regions []string `json:"regions"` // that take longest
	Rows    []Row    `json:"rows"`
	Hidden  int      `json:"hidden"`  // ranks that have no row
	Slowest *Slowest `json:"slowest"` // nil if no rank is clearly
	Apart   bool     `json:"apart"`   // it is known how long each rank waits for others
	Hosts   []Host   `json:"hosts"`   // in the order of nodes
}

// Number is a number of the program, and its points that the viewer lacks: seconds since the start,
// and values.
type Number struct {
	Name   string       `json:"name"`
	Last   float64      `json:"last"`
	Points [][2]float64 `json:"points"`
}

// Row is one rank.
type Row struct {
	Rank    int       `json:"rank"`
	Node    int       `json:"node"`
	Host    string    `json:"host"`
	Age     float64   `json:"age"`     // seconds since it was heard; -1 if never
	Shares  []float64 `json:"shares"`  // of its time, by View.Phases
	Regions []float64 `json:"regions"` // by View.Regions
	Pools   []Pool    `json:"pools"`
	Process int       `json:"process"`
	GPU     *Reading  `json:"gpu"`
}

// Slowest is the rank that the others wait for.
type Slowest struct {
	Rank  int     `json:"rank"`
	Least float64 `json:"least"` // share of its time in which it waits for others
	Most  float64 `json:"most"`  // that of the rank that waits longest
}

// Host is a node's memory.
type Host struct {
	Node  int    `json:"node"`
	Name  string `json:"name"`
	Free  int    `json:"free"`
	Total int    `json:"total"`
}

// View returns the contents of a page that has the points up to a time, in seconds since the start;
// a negative one has none.
func (b *Board) View(have float64) *View {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	v := &View{Facts: b.facts, Seconds: now.Sub(b.started).Seconds(), Ended: b.ended, Window: window.Seconds(),
		Numbers: []Number{}, Phases: []string{}, Regions: []string{}, Rows: []Row{}, Hosts: []Host{}}
	for _, s := range b.numbers {
		v.Numbers = append(v.Numbers, Number{s.name, s.last.value, s.after(have)})
	}
	spent := make([]spending, len(b.ranks))
	for r := range b.ranks {
		spent[r] = b.ranks[r].spending()
	}
	v.Phases, v.Regions = phasesOf(spent), regionsOf(spent)
	v.Slowest, v.Apart = slowest(spent)
	for r := range min(len(b.ranks), mostShown) {
		if r == mostShown-1 && v.Slowest != nil && v.Slowest.Rank > r {
			r = v.Slowest.Rank
		}
		v.Rows = append(v.Rows, b.row(r, &spent[r], v, now))
	}
	v.Hidden = len(b.ranks) - len(v.Rows)
	v.Hosts = b.hosts()
	return v
}

// Slowest returns the rank that the others wait for. It returns nil if no rank is clearly the
// slowest, or it is not known.
func (b *Board) Slowest() *Slowest {
	b.mu.Lock()
	defer b.mu.Unlock()
	spent := make([]spending, len(b.ranks))
	for r := range b.ranks {
		spent[r] = b.ranks[r].spending()
	}
	found, _ := slowest(spent)
	return found
}

// row returns a rank's row of a page. The caller holds b.mu, here and below.
func (b *Board) row(r int, spent *spending, v *View, now time.Time) Row {
	row := Row{Rank: r, Age: -1, Shares: make([]float64, len(v.Phases)), Regions: make([]float64, len(v.Regions)),
		Pools: []Pool{}}
	for i, name := range v.Phases {
		row.Shares[i] = spent.of(spent.phases, name)
	}
	for i, name := range v.Regions {
		row.Regions[i] = spent.of(spent.regions, name)
	}
	if s := b.ranks[r].last(); s != nil {
		row.Node, row.Host, row.Process, row.GPU = s.Node, s.Host, s.Process, s.GPU
		row.Pools = append(row.Pools, s.Pools...)
		row.Age = now.Sub(b.ranks[r].heard).Seconds()
	}
	return row
}

// hosts are the nodes whose ranks were heard, from their latest samples.
func (b *Board) hosts() []Host {
	at := map[int]time.Time{}
	hosts := []Host{}
	for r := range b.ranks {
		h := &b.ranks[r]
		s := h.last()
		if s == nil || s.Total == 0 || h.heard.Before(at[s.Node]) {
			continue
		}
		at[s.Node] = h.heard
		hosts = slices.DeleteFunc(hosts, func(o Host) bool { return o.Node == s.Node })
		hosts = append(hosts, Host{s.Node, s.Host, s.Free, s.Total})
	}
	slices.SortFunc(hosts, func(a, b Host) int { return cmp.Compare(a.Node, b.Node) })
	return hosts
}

// last returns the latest sample; nil if there is none.
func (h *history) last() *Sample {
	if len(h.samples) == 0 {
		return nil
	}
	return h.samples[len(h.samples)-1]
}
