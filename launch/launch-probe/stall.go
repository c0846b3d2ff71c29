package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	mpi "github.com/sbromberger/gompi"

	"lockstep/cudampi"
	"lockstep/launch/doctor"
)

// sideline goes on beside MPI. If MPI gets nowhere, as over a network interface that leads nowhere,
// it reports on rank 0 without it: every rank's facts, by the launcher's channel, and which
// interfaces connect.
type sideline struct {
	done  chan struct{} // closed by close
	ended chan struct{}
}

// card is the post of a rank.
type card struct {
	Facts doctor.Facts
	At    doctor.Address
}

// Times of the sideline.
const (
	look    = 20 * time.Millisecond // between looks whether MPI_Init is over
	collect = 5 * time.Second       // for the cards of all ranks
	telling = 15 * time.Second      // for all the rest when MPI has got nowhere, and then there is launch's deadline
)

// patience returns how long MPI may take before it is said to get nowhere.
func patience(deadline time.Duration) time.Duration { return max(deadline-telling, deadline/3) }

func beside(job doctor.Job, at doctor.Address) *sideline {
	progress(initialising)
	s := &sideline{make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(s.ended)
		waited := patience(job.Timeout)
		stalled := time.NewTimer(waited)
		defer stalled.Stop()
		ticks := time.NewTicker(look)
		defer ticks.Stop()
		for !mpi.IsOn() {
			select {
			case <-ticks.C:
			case <-s.done:
				return
			}
		}
		progress(greeting)
		if openBoard() != nil {
			return // then there is launch's own deadline
		}
		defer closeBoard()
		text, err := json.Marshal(card{job.Facts, at})
		if err == nil {
			err = post(string(text))
		}
		if err != nil {
			return
		}
		over := func() bool {
			select {
			case <-s.done:
				return false
			case <-stalled.C:
				return true
			}
		}
		if !over() {
			return
		}
		if now() >= sendingGPU { // the ranks have met; some may still try what has a limit of its own
			waited += job.Extension()
			stalled.Reset(job.Extension())
			if !over() {
				return
			}
		}
		if job.Facts.Launcher.Rank == 0 {
			s.report(job, at, waited)
		}
		<-s.done // the launcher ends this rank when rank 0 has spoken
	}()
	return s
}

// close ends the sideline before MPI is stopped.
func (s *sideline) close() {
	close(s.done)
	<-s.ended
}

// report shows the result of a job whose ranks do not meet, and ends this process.
func (s *sideline) report(job doctor.Job, at doctor.Address, waited time.Duration) {
	size := job.Facts.Launcher.Size
	cards := make([]*card, size)
	type arrival struct {
		rank int
		card *card
	}
	arrivals := make(chan arrival, size)
	for r := range size {
		go func() {
			var c card
			if text, err := read(r); err == nil && json.Unmarshal([]byte(text), &c) == nil {
				arrivals <- arrival{r, &c}
			}
		}()
	}
	limit := time.After(collect)
	for n, late := 0, false; n < size && !late; n++ {
		select {
		case a := <-arrivals:
			cards[a.rank] = a.card
		case <-limit:
			late = true
		}
	}
	r := doctor.Result{NotChecked: []string{"clocks, and the network between nodes other than the first"}}
	var hosts []string
	var places []doctor.Address
	var missing []int
	for rank, c := range cards {
		if c == nil {
			missing = append(missing, rank)
			continue
		}
		f := c.Facts
		f.MPI = &doctor.MPI{Version: cudampi.Version(), Thread: "not known", Rank: rank, Size: size}
		if f.Node = slices.Index(hosts, f.Host); f.Node < 0 {
			f.Node = len(hosts)
			hosts, places = append(hosts, f.Host), append(places, c.At)
		}
		for _, o := range r.Ranks {
			if o.Host == f.Host {
				f.LocalRank++
			}
		}
		r.Ranks = append(r.Ranks, f)
	}
	if len(r.Ranks) == 0 || cards[0] == nil {
		return
	}
	peers := make([]int, 0, len(hosts))
	for n := range hosts[1:] {
		peers = append(peers, n+1)
	}
	r.Ranks[0].Reach = doctor.MeetAll(at, places, peers)
	r.Findings = doctor.Judge(r.Ranks)
	r.Findings = append([]doctor.Finding{{
		Level: doctor.Fail, Ranks: []int{0}, Where: fmt.Sprintf("rank 0 on %s", job.Facts.Host),
		What: fmt.Sprintf("MPI has waited %v in %s: not all ranks reach each other", waited, phases[now()]),
		Do:   "see the other findings, of interfaces above all",
	}}, r.Findings...)
	if len(missing) > 0 {
		r.NotChecked = append(r.NotChecked, fmt.Sprintf("ranks %v, which posted nothing", missing))
	}
	if err := job.Show(&r); err != nil {
		fmt.Fprintln(os.Stderr, "launch-probe:", err)
	}
	progress(ended)
	os.Exit(1)
}
