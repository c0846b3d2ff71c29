package spmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/host"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/affinity"
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
		return errors.Join(Usage(err), w.ranks.Leave())
	}
	return w.join(base)
}

// join makes the communicators and finds the nodes and the cores. It runs in this
// goroutine alone, but other worlds of the process may be at work.
func (w *World) join(base transport.Host) error {
	if err := w.order.Enter(w.order.Take(1)); err != nil {
		return err
	}
	defer w.order.Leave()
	world, err := base.Dup()
	if err != nil {
		return err
	}
	w.log = w.cfg.forJob().Logger(world.Rank(), world.Size(), os.Stderr)
	w.job.Rank, w.job.Size, w.job.Log, w.job.Started = world.Rank(), world.Size(), w.log, w.startup.Started
	w.startTrace(world.Size())
	if w.all, err = w.addComm(world, "world"); err != nil {
		return err
	}
	if w.json != nil && w.Rank() != 0 { // the environment did not say so
		if err := w.json.Close(); err != nil {
			return err
		}
		w.json = nil
	}
	own, err := base.Dup()
	if err != nil {
		return err
	}
	if w.control, err = w.addComm(own, control.ID); err != nil {
		return err
	}
	w.channel = control.NewChannel(w.control.st.host, w.control.st)
	node, err := base.SplitShared()
	if err != nil {
		return err
	}
	if w.near, err = w.addComm(node, "node"); err != nil {
		return err
	}
	shared := w.near.st.host
	if err := w.findNode(w.control.st.host, shared); err != nil {
		return err
	}
	w.near.st.id = fmt.Sprintf("node %d", w.node)
	w.near.st.recorder.ID = w.near.st.id
	w.near.st.trace.Rename(w.near.st.id)
	if err := w.findThreads(shared); err != nil {
		return err
	}
	if err := w.openTrace(); err != nil {
		return err
	}
	if err := w.chooseDevice(shared); err != nil {
		return err
	}
	if w.OnHost() {
		return nil
	}
	return w.startGPU(shared)
}

// findNode numbers the nodes by their lowest rank: node leaders count those
// before them and tell the others. On the way the ranks compare what they were started with.
func (w *World) findNode(world, node control.Comm) error {
	type facts struct{ leads, sum int64 }
	all := make([]facts, world.Size())
	mine := facts{sum: job.Sum(w.cfg.forJob().Settings(w.flags))}
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
	inOrder, err := control.Range(world, int64(b2i(world.Rank() == int(lead[1])+node.Rank())))
	w.byNode = inOrder.Lo == 1
	w.mpiSockets = job.Sockets()
	return err
}

// compareSettings fails on all ranks alike where their settings differ.
//
// Collective over the ranks of m, which are all.
func (w *World) compareSettings(m control.Comm) error {
	mine, err := json.Marshal(w.cfg.forJob().Settings(w.flags))
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
		return Usage(errors.New(text))
	}
	return nil
}

// findThreads shares out the cores of the node. Collective over it.
func (w *World) findThreads(node control.Comm) (err error) {
	if w.threads, err = affinity.Share(node); err != nil {
		return err
	}
	host.SetThreads(w.threads)
	// Goroutines inside MPI or BLAS hold a processor of the Go scheduler for a while, so a
	// rank bound to one core needs more of them than cores for its streams to run at the
	// same time.
	here := w.ranks.Here()
	if procs := here*w.threads + 3*min(here, runtime.NumCPU()); procs > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(procs)
	}
	return nil
}

// logStart logs the job's configuration and why it was chosen.
func (w *World) logStart() {
	line := w.Log().Info()
	if w.fellBack {
		line = w.Log().Warn()
	}
	line = line.Str("launcher", w.launched.Name).Int("ranks", w.Size()).Int("nodes", w.nodes).
		Str("device", w.Device()).Str("collectives", w.Collectives()).Str("why", w.why).
		Str("mpi", w.ranks.Library()).Int("threads", w.threads).Str("blas", host.BLAS())
	if w.cores != "" {
		line = line.Str("cores", w.cores)
	}
	w.dev.Describe(line)
	w.all.st.routes.Describe(line)
	if w.nodes > 1 {
		line = w.describeNodes(line)
	}
	line.Dict("startup_ms", w.startup.Log()).Msg("start")
}

// describeNodes adds what matters between nodes: in which order they hold the ranks,
// and by which interfaces this rank's connections leave the node. Fabrics other than
// TCP show none.
func (w *World) describeNodes(line *zerolog.Event) *zerolog.Event {
	order := "by node"
	if !w.byNode {
		order = "mixed: neighbours in rank are on different nodes"
	}
	line = line.Str("rank_order", order).Str("mpi_tcp", cmp.Or(job.Interfaces(w.mpiSockets), "none"))
	if !w.OnHost() {
		now := slices.DeleteFunc(w.ncclSockets, func(s job.Socket) bool { return slices.Contains(w.mpiSockets, s) })
		line = line.Str("nccl_tcp", cmp.Or(job.Interfaces(now), "none"))
	}
	return line
}
