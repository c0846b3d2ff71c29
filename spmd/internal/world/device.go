package world

import (
	"errors"
	"fmt"
	"strings"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/cudaexec"
	"lockstep/spmd/internal/exec/hostexec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// chooseDevice opens the rank's GPU, or settles on the host, on all ranks alike.
//
// Collective over all ranks.
func (w *World) chooseDevice(node control.Exchange) error {
	if w.start.Config.OnHost() {
		w.why = "--device " + w.start.Config.Device
		w.useHost()
		return nil
	}
	job.StartsDevice()
	defer w.startup.Begin("context")()
	useBackend := w.chooseBackend()
	index, err := cudaexec.Find(node, route.SharesGPUs(w.start.Config.Collectives))
	failure, err := w.firstFailure(err)
	if err != nil {
		return err
	}
	if failure == nil {
		w.why = "every rank has a GPU of its own"
		if err := useBackend(); err != nil {
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
	if w.rank.All.Size() > 1 {
		what = failure.Error()
	}
	if failure.Code == cudaexec.CodeTooMany {
		what += "; start fewer ranks, or run on the host with --device host"
	}
	switch {
	case w.start.Config.Device == "cuda":
		return job.Usage(fmt.Errorf("--device cuda: %s", what))
	case route.ForDevicesOnly(w.start.Config.Collectives):
		return job.Usage(fmt.Errorf("--collectives %s: %s", w.start.Config.Collectives, what))
	case failure.Code == cudaexec.CodeTooMany:
		return job.Usage(errors.New(what))
	}
	w.agreed = false
	w.fellBack = failure.Code != cudaexec.CodeNoGPU
	w.why = "no GPU: " + what
	if w.fellBack {
		w.why = "the GPU is not used: " + what
	}
	w.useHost()
	return nil
}

func (w *World) useHost() {
	d := hostexec.NewDevice(w.rank.Order, w.Fail)
	d.Trace = w.rank.Trace
	if w.start.Config.Device == "emulate" {
		d.Emulator = hostexec.NewEmulator()
	}
	w.rank.Dev = d
	w.findRaces(&d.Queues)
}

// useGPU makes the world work on a GPU; nil if it could not be opened.
func (w *World) useGPU(g *cudaexec.GPU) {
	if g != nil {
		w.rank.GPU = cudaexec.NewDevice(g, w.start.Fill, w.rank.Order, w.Fail)
		w.rank.GPU.Log, w.rank.GPU.Trace = w.rank.Log, w.rank.Trace
		w.rank.Dev = w.rank.GPU
		w.findRaces(&w.rank.GPU.Queues)
	}
}

// findRaces has the queues of a device find races, if --check is on.
func (w *World) findRaces(of *exec.Queues) {
	if verify.Mode(w.start.Config.Compares()) == verify.On {
		of.FindRaces()
	}
}

// firstFailure returns the failure of the first rank that has one, during the start; nil if no rank
// has.
//
// Collective over all ranks.
func (w *World) firstFailure(mine error) (*control.Failure, error) {
	return control.First(w.rank.Control.Host(), mine)
}

// startGPU makes all parts of a world with a GPU. A failure of one rank is every rank's.
//
// Collective over all ranks.
func (w *World) startGPU(node control.Exchange) error {
	w.rank.Env = route.Env{GPU: w.rank.GPU.GPU, Log: w.rank.Log, Begin: w.startup.Begin, Quiesce: w.rank.Dev.Quiesce,
		Symmetric: w.start.Config.Symmetric,
		Backend:   w.rank.Env.Backend, Node: w.node, Nodes: w.nodes, First: w.rank.All.Routes()}
	w.rank.UseDevice()
	if err := w.stayNear(node); err != nil {
		return err
	}
	done := w.startup.Begin("kernels")
	err := w.rank.GPU.GPU.LoadDeclared(node, w.threads)
	done()
	if err == nil {
		err = w.rank.GPU.OpenStaging()
	}
	if err == nil {
		err = w.rank.OpenBlocking()
	}
	if err := w.mustAgree(err); err != nil || w.rank.All.Size() == 1 {
		return err
	}
	if err := w.openTransports(); err != nil || !w.rank.Env.Backend.Joins() {
		return err
	}
	defer w.startup.Begin(w.rank.Env.Backend.Name())()
	w.rank.OpenSymmetric()
	err = w.rank.WarmUp()
	if w.nodes > 1 {
		w.ncclSockets = job.Sockets()
	}
	return err
}

// mustAgree returns an error on every rank if one has failed in the start, which has not gone wrong
// otherwise.
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

// stayNear keeps this process to the cores near its GPU, if nobody has bound it. It shares them out
// among the ranks that have the same. Collective over the node.
func (w *World) stayNear(node control.Exchange) error {
	list, near := job.NearGPU("/sys", w.rank.GPU.GPU.Dev.PCI())
	if list != "" && w.ranks.Here() == 1 { // else other ranks of the process are near other GPUs
		if err := job.KeepCores(&near); err != nil {
			w.rank.Log.Warn().Err(err).Msg("this process may run far from its GPU")
		} else {
			w.cores = list + ", near the GPU"
		}
	}
	return w.findThreads(node)
}

// chooseBackend settles, on all ranks alike, on a carrier of GPU memory. It comes before the driver
// is initialised: see route.Select. If there are GPUs, use takes the choice over.
//
// Collective over all ranks.
func (w *World) chooseBackend() (use func() error) {
	if w.rank.All.Size() == 1 {
		return func() error { return nil }
	}
	s, err := route.Select(w.rank.Control.Host(), w.start.Config.Collectives)
	return func() error {
		if err != nil {
			return err
		}
		if s.Lacking != nil {
			w.agreed = true
			return job.Usage(fmt.Errorf("--collectives %s: %w", w.start.Config.Collectives, s.Lacking))
		}
		w.rank.Env.Backend = s.Backend
		if s.Passed != "" {
			w.fellBack, w.why = true, s.Passed
		}
		return nil
	}
}

// openTransports makes the world's communicators carry GPU memory, and says why in the way that
// they do.
//
// Collective over all ranks.
func (w *World) openTransports() error {
	world, asked := w.rank.All.Routes(), w.start.Config.Collectives
	agreed, err := route.OpenWorld(world, w.rank.Node.Routes())
	switch {
	case err != nil && agreed:
		w.agreed = true
		err = errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
		if !route.ForDevicesOnly(asked) {
			return err
		}
		return job.Usage(fmt.Errorf("--collectives %s: %w", asked, err))
	case err != nil:
		return err
	}
	why, doubtful, err := world.Why()
	if err != nil || why == "" {
		return err
	}
	w.why += "; "
	if asked == w.rank.Env.Backend.Name() {
		w.why += "--collectives " + asked
		if doubtful {
			w.why += ", though "
		} else {
			w.why += ": "
		}
	}
	w.why += why
	w.fellBack = w.fellBack || doubtful
	return nil
}

// Explain makes fn say what kernels have found, after a stream of the device has failed.
func (w *World) Explain(fn func() string) {
	switch d := w.rank.Dev.(type) {
	case *hostexec.Host:
		d.Found.Set(fn)
	case *cudaexec.CUDA:
		d.Found.Set(fn)
	}
}
