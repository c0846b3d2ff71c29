// Command launch-probe is the part of launch doctor that needs MPI. launch starts it once on each
// rank, with the rank's facts on its standard input. It adds MPI's facts, lets the nodes meet over
// their networks, and shows all on rank 0. Its exit status, 1 after a failure, is the same on all
// ranks.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/internal/launcher"
	"lockstep/launch/doctor"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == sendArg {
		if err := sendGPUMemory(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	status, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "launch-probe:", err)
		cudampi.Abort(1) // other ranks may wait for this one
		os.Exit(1)
	}
	os.Exit(status)
}

func run() (int, error) {
	var job doctor.Job
	if err := json.NewDecoder(os.Stdin).Decode(&job); err != nil {
		return 0, fmt.Errorf("started by hand? launch doctor starts it: %w", err)
	}
	door := doctor.OpenDoor(job.Facts.Interfaces)
	defer door.Close()
	side := beside(job, door.Address)
	world, err := cudampi.Start()
	if err != nil {
		return 0, err
	}
	p := probe{world: world, facts: job.Facts, at: door.Address}
	p.facts.MPI = &doctor.MPI{Version: cudampi.Version(), Thread: "serialized or above",
		Rank: world.Rank(), Size: world.Size()}
	alone := launcher.Job(p.facts.Launcher).CheckWorld(world.Size()) != nil
	if alone && !job.First { // each is rank 0 for MPI
		side.close()
		progress(ended)
		time.Sleep(doctor.Grace)
		return 1, cudampi.Stop()
	}
	status, err := p.examine(job, alone)
	if err != nil {
		return 0, err
	}
	side.close()
	return status, cudampi.Stop()
}

// The phases of the probe, in launch's words about a probe that does not come back.
type phase int

const (
	starting phase = iota
	initialising
	greeting
	findingNodes
	sendingGPU
	comparingClocks
	meeting
	gathering
	ended
)

var phases = map[phase]string{
	initialising: doctor.PhaseInit, greeting: "the first message to all ranks",
	findingNodes: "the search for the nodes",
	sendingGPU:   doctor.PhaseGPU, comparingClocks: "the comparison of clocks",
	meeting:   "the test of the network between nodes",
	gathering: "the gathering of facts on rank 0", ended: doctor.PhaseDone,
}

var (
	progressMu sync.Mutex
	reached    phase
	phasePipe  = os.NewFile(doctor.PhaseFD, "phases")
)

// progress tells launch the next phase, unless that is past.
func progress(to phase) {
	progressMu.Lock()
	defer progressMu.Unlock()
	if to > reached {
		reached = to
		_, _ = fmt.Fprintln(phasePipe, phases[to]) // without launch there is nobody to tell
	}
}

// now returns the present phase.
func now() phase {
	progressMu.Lock()
	defer progressMu.Unlock()
	return reached
}

type probe struct {
	world, node *cudampi.Comm
	facts       doctor.Facts
	at          doctor.Address
	nodes       int
}

// examine gathers the facts on rank 0, which shows them. It returns the exit status of all ranks.
func (p *probe) examine(job doctor.Job, alone bool) (int, error) {
	progress(findingNodes)
	if err := p.findNode(); err != nil {
		return 0, err
	}
	progress(sendingGPU)
	if err := p.askAware(job.GPUTime()); err != nil {
		return 0, err
	}
	progress(comparingClocks)
	if err := p.compareClocks(); err != nil {
		return 0, err
	}
	progress(meeting)
	if err := p.meet(); err != nil {
		return 0, err
	}
	progress(gathering)
	all, err := gather(p.world, p.facts)
	if err != nil {
		return 0, err
	}
	status := int64(0)
	if p.world.Rank() == 0 {
		r := doctor.Result{Ranks: all, Findings: doctor.Judge(all)}
		if alone {
			r.NotChecked = append(r.NotChecked, "the other tasks, and whether all agree and reach each other")
		}
		status = int64(r.Status())
		if err := job.Show(&r); err != nil {
			return 0, err
		}
	}
	if err := p.world.Broadcast(unsafe.Pointer(&status), 1, elem.Int64, 0); err != nil {
		return 0, err
	}
	progress(ended)
	return int(status), p.node.Close()
}

// findNode numbers the nodes by their lowest rank.
func (p *probe) findNode() (err error) {
	if p.node, err = p.world.SplitShared(); err != nil {
		return err
	}
	lowest := int64(p.world.Rank())
	if err := p.node.Broadcast(unsafe.Pointer(&lowest), 1, elem.Int64, 0); err != nil {
		return err
	}
	all := make([]int64, p.world.Size())
	if err := p.world.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&lowest), 1, elem.Int64); err != nil {
		return err
	}
	for r, l := range all {
		if int(l) == r { // the first of its node
			if l < lowest {
				p.facts.Node++
			}
			p.nodes++
		}
	}
	p.facts.LocalRank = p.node.Rank()
	return nil
}

// rounds of messages with each node; the quickest counts.
const rounds = 10

// compareClocks measures how far each node's clock is ahead of rank 0's. Rank 0 asks the first rank
// of each node for its time, which lies in the middle of the quickest answer's way.
func (p *probe) compareClocks() error {
	leader := int64(0)
	if p.node.Rank() == 0 {
		leader = 1
	}
	leaders := make([]int64, p.world.Size())
	if err := p.world.AllGather(unsafe.Pointer(&leaders[0]), unsafe.Pointer(&leader), 1, elem.Int64); err != nil {
		return err
	}
	var skew int64
	if p.world.Rank() == 0 {
		for r := 1; r < len(leaders); r++ {
			if leaders[r] == 0 {
				continue
			}
			best, ahead := time.Duration(1<<62), int64(0)
			for range rounds {
				begin := time.Now()
				var theirs int64
				if err := p.ask(&theirs, r); err != nil {
					return err
				}
				if took := time.Since(begin); took < best {
					best, ahead = took, theirs-begin.Add(took/2).UnixNano()
				}
			}
			if err := p.world.Send(unsafe.Pointer(&ahead), 1, elem.Int64, r); err != nil {
				return err
			}
		}
	} else if leader == 1 {
		for range rounds {
			if err := p.answer(0); err != nil {
				return err
			}
		}
		if err := p.world.Recv(unsafe.Pointer(&skew), 1, elem.Int64, 0); err != nil {
			return err
		}
	}
	if err := p.node.Broadcast(unsafe.Pointer(&skew), 1, elem.Int64, 0); err != nil {
		return err
	}
	ahead := time.Duration(skew)
	p.facts.Skew = &ahead
	return nil
}

// ask gets a peer's time.
func (p *probe) ask(theirs *int64, peer int) error {
	return errors.Join(p.world.Send(unsafe.Pointer(theirs), 1, elem.Int64, peer),
		p.world.Recv(unsafe.Pointer(theirs), 1, elem.Int64, peer))
}

// answer waits until a peer asks, and tells it the time.
func (p *probe) answer(peer int) error {
	var now int64
	if err := p.world.Recv(unsafe.Pointer(&now), 1, elem.Int64, peer); err != nil {
		return err
	}
	now = time.Now().UnixNano()
	return p.world.Send(unsafe.Pointer(&now), 1, elem.Int64, peer)
}

// place is where the first rank of a node waits for the others; other ranks tell no address.
type place struct {
	Node int
	At   doctor.Address
}

// meet lets the first rank of each node connect to those of others over each of its interfaces.
func (p *probe) meet() error {
	if p.nodes == 1 {
		return nil
	}
	mine := place{Node: p.facts.Node}
	if p.node.Rank() == 0 {
		mine.At = p.at
	}
	all, err := share(p.world, mine)
	if err != nil {
		return err
	}
	if p.node.Rank() == 0 {
		places := make([]doctor.Address, p.nodes)
		for _, o := range all {
			if o.At.Token != nil {
				places[o.Node] = o.At
			}
		}
		p.facts.Reach = doctor.MeetAll(p.at, places, doctor.Peers(p.facts.Node, p.nodes))
	}
	return p.world.Barrier() // nobody closes its door before all have knocked
}

// encoded turns a rank's value into bytes, and tells all ranks how many each has.
func encoded(c *cudampi.Comm, v any) (text []byte, counts []int, err error) {
	if text, err = json.Marshal(v); err != nil {
		return nil, nil, err
	}
	n := int64(len(text))
	lengths := make([]int64, c.Size())
	if err := c.AllGather(unsafe.Pointer(&lengths[0]), unsafe.Pointer(&n), 1, elem.Int64); err != nil {
		return nil, nil, err
	}
	for _, l := range lengths {
		counts = append(counts, int(l))
	}
	return text, counts, nil
}

func decoded[T any](text []byte, counts []int) ([]T, error) {
	all := make([]T, len(counts))
	for r, n := range counts {
		if err := json.Unmarshal(text[:n], &all[r]); err != nil {
			return nil, fmt.Errorf("from rank %d: %w: build launch and launch-probe together on all nodes", r, err)
		}
		text = text[n:]
	}
	return all, nil
}

// gather returns every rank's value on rank 0, elsewhere nil.
func gather[T any](c *cudampi.Comm, v T) ([]T, error) {
	text, counts, err := encoded(c, v)
	if err != nil {
		return nil, err
	}
	whole := make([]byte, sum(counts))
	if err := c.GatherV(unsafe.Pointer(&whole[0]), unsafe.Pointer(&text[0]), counts, elem.Uint8, 0); err != nil ||
		c.Rank() != 0 {
		return nil, err
	}
	return decoded[T](whole, counts)
}

// share returns every rank's value on all.
func share[T any](c *cudampi.Comm, v T) ([]T, error) {
	text, counts, err := encoded(c, v)
	if err != nil {
		return nil, err
	}
	whole := make([]byte, sum(counts))
	if err := c.AllGatherV(unsafe.Pointer(&whole[0]), unsafe.Pointer(&text[0]), counts, elem.Uint8); err != nil {
		return nil, err
	}
	return decoded[T](whole, counts)
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
