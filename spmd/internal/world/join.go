package world

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"lockstep/cuda/nvrtc"
	"lockstep/host"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/transport"
)

// connect starts MPI and joins the job, one world of the process at a time.
func (w *World) connect() error {
	w.ranks.Lock()
	defer w.ranks.Unlock()
	done := w.startup.Begin("mpi")
	base, err := w.ranks.Join()
	if err != nil {
		return err
	}
	done()
	if err := w.launched.CheckWorld(base.Size()); err != nil {
		return errors.Join(job.Usage(err), w.ranks.Leave())
	}
	return w.join(base)
}

// join makes the communicators and finds the nodes and the cores. It runs in this goroutine alone,
// but other worlds of the process may be at work.
func (w *World) join(base transport.Host) error {
	if err := w.rank.Order.Enter(w.rank.Order.Take(1)); err != nil {
		return err
	}
	defer w.rank.Order.Leave()
	world, err := base.Dup()
	if err != nil {
		return err
	}
	*w.rank.Log = w.start.Config.Logger(world.Rank(), world.Size(), os.Stderr)
	w.job.Rank, w.job.Size, w.job.Log, w.job.Started = world.Rank(), world.Size(), *w.rank.Log, w.startup.Started
	if world.Rank() == 0 {
		nvrtc.TellSlow(func(what, dir string) {
			w.rank.Log.Info().Str("first", what).Str("kept", cmp.Or(dir, "nowhere: set LOCKSTEP_CACHE")).
				Msg("compiling and timing, which later starts find kept")
		})
	}
	w.startTrace(world.Size())
	if w.rank.All, err = w.rank.AddComm(world, "world"); err != nil {
		return err
	}
	if w.json != nil && w.rank.All.Rank() != 0 { // the environment did not say so
		if err := w.json.Commit(); err != nil {
			return err
		}
		w.json = nil
	}
	own, err := base.Dup()
	if err != nil {
		return err
	}
	if w.rank.Control, err = w.rank.AddComm(own, control.ID); err != nil {
		return err
	}
	w.rank.Channel = control.NewChannel(w.rank.Control.Host(), w.rank.Control)
	node, err := base.SplitShared()
	if err != nil {
		return err
	}
	if w.rank.Node, err = w.rank.AddComm(node, "node"); err != nil {
		return err
	}
	shared := w.rank.Node.Host()
	if err := w.findNode(w.rank.Control.Host(), shared); err != nil {
		return err
	}
	w.rank.Node.Rename(fmt.Sprintf("node %d", w.node))
	if err := w.findThreads(shared); err != nil {
		return err
	}
	if err := w.openTrace(); err != nil {
		return err
	}
	if err := w.openDashboard(); err != nil {
		return err
	}
	if err := w.chooseDevice(shared); err != nil {
		return err
	}
	if w.rank.OnHost() {
		return nil
	}
	return w.startGPU(shared)
}

// findNode numbers the nodes by their lowest rank: node leaders count those before them and tell
// the others. On the way the ranks compare their settings.
func (w *World) findNode(world, node control.Exchange) error {
	type facts struct{ leads, sum int64 }
	all := make([]facts, world.Size())
	mine := facts{sum: job.Sum(w.start.Config.Settings(w.start.Flags))}
	if node.Rank() == 0 {
		mine.leads = 1
	}
	if err := world.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), 2, elem.Int64); err != nil {
		return err
	}
	before := int64(0)
	for r, f := range all {
		w.nodes += int(f.leads)
		if r < world.Rank() {
			before += f.leads
		}
	}
	if slices.ContainsFunc(all, func(f facts) bool { return f.sum != mine.sum }) {
		if err := w.compareSettings(world); err != nil {
			return err
		}
	}
	lead := [2]int64{before, int64(world.Rank())}
	if err := node.Broadcast(unsafe.Pointer(&lead), len(lead), elem.Int64, 0); err != nil {
		return err
	}
	w.node = int(lead[0])
	w.job.Node, w.job.Nodes = w.node, w.nodes
	if w.nodes == 1 {
		return nil
	}
	follows := int64(0)
	if world.Rank() == int(lead[1])+node.Rank() {
		follows = 1
	}
	inOrder, err := control.Range(world, follows)
	w.byNode = inOrder.Lo == 1
	w.mpiSockets = job.Sockets()
	return err
}

// compareSettings fails on all ranks alike if their settings differ.
//
// Collective over the ranks of m, which are all.
func (w *World) compareSettings(m control.Exchange) error {
	mine, err := json.Marshal(w.start.Config.Settings(w.start.Flags))
	if err != nil {
		return err
	}
	all, err := control.Gather(m, mine)
	if err != nil {
		return err
	}
	lists := make([][]job.Setting, len(all))
	for r, said := range all {
		if err := json.Unmarshal(said, &lists[r]); err != nil {
			return fmt.Errorf("settings of rank %d: %w", r, err)
		}
	}
	if text := job.Differences(lists); text != "" {
		w.agreed = true
		return job.Usage(errors.New(text))
	}
	return nil
}

// findThreads shares out the cores of the node. Collective over it.
func (w *World) findThreads(node control.Exchange) (err error) {
	shared := false
	if w.threads, shared, err = job.ShareOfCores(node); err != nil {
		return err
	}
	if w.rank.GPU != nil {
		w.rank.GPU.Crowded = shared && w.threads == 1
	}
	w.endShare()
	w.endShare = host.Share(w.threads)
	// Goroutines inside MPI or BLAS hold a processor of the Go scheduler for a while. So a rank
	// bound to one core needs more of them than cores for its streams to run at the same time.
	here := w.ranks.Here()
	if procs := here*w.threads + 3*min(here, runtime.NumCPU()); procs > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(procs)
	}
	return nil
}
