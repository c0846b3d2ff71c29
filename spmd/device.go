package spmd

import (
	"errors"
	"fmt"

	"lockstep/spmd/internal/affinity"
	"lockstep/spmd/internal/control"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	hostexec "lockstep/spmd/internal/exec/host"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/transport/route"
)

// chooseDevice opens the rank's GPU, or settles on the host, on all ranks alike.
//
// Collective over all ranks.
func (w *World) chooseDevice(node control.Comm) error {
	if w.cfg.Device == "host" {
		w.why = "--device host"
		w.useHost()
		return nil
	}
	defer w.startup.Begin("context")()
	index, err := cudaexec.Find(node, route.SharesGPUs(w.cfg.Collectives))
	failure, err := w.firstFailure(err)
	if err != nil {
		return err
	}
	if failure == nil {
		w.why = "every rank has a GPU of its own"
		if err := w.chooseBackend(); err != nil {
			return err
		}
		g, err := cudaexec.Open(index)
		failure, err = w.firstFailure(err)
		if err != nil || failure == nil {
			w.useGPU(g)
			return err
		}
		if g != nil {
			if err := g.Close(); err != nil {
				return err
			}
		}
	}
	w.agreed = true
	what := failure.Text
	if w.Size() > 1 {
		what = failure.Error()
	}
	if failure.Code == cudaexec.CodeTooMany {
		what += "; start fewer ranks, or run on the host with --device host"
	}
	switch {
	case w.cfg.Device == "cuda":
		return Usage(fmt.Errorf("--device cuda: %s", what))
	case route.ForDevicesOnly(w.cfg.Collectives):
		return Usage(fmt.Errorf("--collectives %s: %s", w.cfg.Collectives, what))
	case failure.Code == cudaexec.CodeTooMany:
		return Usage(errors.New(what))
	}
	w.agreed = false
	w.fellBack = failure.Code != cudaexec.CodeNoGPU
	w.why = "no GPU: " + what
	if w.fellBack {
		w.why = "the GPU is not used: " + what
	}
	if w.cfg.Check == "both" {
		w.why += nothingToCompare
	}
	w.useHost()
	return nil
}

func (w *World) useHost() {
	d := hostexec.NewDevice(w.order, w.fail)
	d.Trace = w.trace
	w.dev = d
}

// useGPU has the world work on a GPU; nil where it could not be opened.
func (w *World) useGPU(g *cudaexec.GPU) {
	if g != nil {
		w.gpu = cudaexec.NewDevice(g, &fillKernel.k, w.order, w.fail)
		w.dev = w.gpu
	}
}

// firstFailure returns the failure of the first rank that has one, during the start; nil where none has.
//
// Collective over all ranks.
func (w *World) firstFailure(mine error) (*control.Failure, error) {
	return control.First(w.control.st.host, mine)
}

// startGPU makes everything that a world with a GPU has. A failure of one rank is
// every rank's.
//
// Collective over all ranks.
func (w *World) startGPU(node control.Comm) error {
	w.env = route.Env{GPU: w.gpu.GPU, Log: &w.log, Begin: w.startup.Begin, Quiesce: w.dev.Quiesce, Symmetric: w.cfg.Symmetric,
		Backend: w.env.Backend, Node: w.node, Nodes: w.nodes, First: &w.all.st.routes}
	for _, st := range w.comms { // those made before the device was chosen
		st.onGPU()
	}
	if err := w.stayNear(node); err != nil {
		return err
	}
	done := w.startup.Begin("kernels")
	err := w.gpu.GPU.LoadDeclared(node, w.threads)
	done()
	if err == nil {
		err = w.gpu.OpenStaging()
	}
	if err == nil {
		w.blocking, err = w.NewStreamPriority("blocking calls", High)
	}
	if err := w.mustAgree(err); err != nil || w.Size() == 1 {
		return err
	}
	compares, joins := w.cfg.Check == "both", w.env.Backend.Joins()
	if compares && !joins {
		w.why += nothingToCompare
	}
	if err := w.openTransports(); err != nil || !joins {
		return err
	}
	defer w.startup.Begin(w.env.Backend.Name())()
	if w.all.st.routes.HasSymmetric() {
		w.symmetric = newSymmetric(w)
	}
	err = w.warmUp()
	if w.nodes > 1 {
		w.ncclSockets = job.Sockets()
	}
	if err == nil && compares {
		err = w.openCross()
	}
	return err
}

// warmUp runs the first collective, in which a backend that joins the ranks connects them.
func (w *World) warmUp() error {
	err := Barrier(w.Comm().On(w.blocking))
	return errors.Join(err, w.blocking.Synchronize())
}

// mustAgree returns an error on every rank where one has failed in the start, which has not gone wrong otherwise.
//
// Collective over all ranks.
func (w *World) mustAgree(mine error) error {
	f, err := w.firstFailure(mine)
	if err != nil || f == nil {
		return err
	}
	w.agreed = true
	return f.Or(mine)
}

// stayNear keeps this process to the cores near its GPU, where nobody has bound it, and
// shares them out among the ranks that have the same. Collective over the node.
func (w *World) stayNear(node control.Comm) error {
	list, near := affinity.NearGPU("/sys", w.gpu.GPU.Dev.PCI())
	if list != "" && w.ranks.Here() == 1 { // else other ranks of the process are near other GPUs
		if err := affinity.Keep(&near); err != nil {
			w.Log().Warn().Err(err).Msg("this process may run far from its GPU")
		} else {
			w.cores = list + ", near the GPU"
		}
	}
	return w.findThreads(node)
}
