package spmd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"lockstep/cudampi"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/verify"
)

// chooseCarrier settles on all ranks alike what carries GPU memory: MPI where that is
// asked for, or where a rank has no NCCL and nobody insists on it; else NCCL. It comes
// before the GPU is opened.
//
// Collective over all ranks.
func (w *World) chooseCarrier() error {
	if w.Size() == 1 {
		return nil
	}
	if _, w.byMPI = w.cfg.mpiPath(); !w.byMPI {
		lacking, err := w.firstFailure(nccl.Load())
		switch {
		case err != nil || lacking == nil:
			return err
		case w.cfg.Collectives == "nccl":
			w.agreed = true
			return Usage(fmt.Errorf("--collectives nccl: %w", lacking))
		}
		w.byMPI, w.fellBack = true, true
		w.why = fmt.Sprintf("NCCL is not used: %v", lacking)
	}
	// A stream that waits for the host must not hold up others, which share few queues of the device unless told.
	return os.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", cmp.Or(os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"))
}

// startMPI has MPI carry GPU memory, and says why on which way.
//
// Collective over all ranks.
func (w *World) startMPI() error {
	world := w.Comm.st
	err := w.mustAgree(world.routes.OpenDevice())
	if err == nil {
		err = w.mustAgree(w.NodeComm.st.routes.OpenDevice())
	}
	path, asked := w.cfg.mpiPath()
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
		if path == cudampi.Auto {
			return err
		}
		return Usage(fmt.Errorf("--collectives %s: %w", w.cfg.Collectives, err))
	}
	how := ": "
	if path == cudampi.AwareMPI {
		said, err := cudampi.CUDAAware()
		if err != nil {
			return err
		}
		if !said.Yes {
			how, w.fellBack = ", though ", true
		}
	}
	if asked {
		w.why += "; --collectives " + w.cfg.Collectives + how + world.routes.OnMPI().Comm.Reason()
	} else {
		w.why += "; " + world.routes.OnMPI().Comm.Reason()
	}
	return nil
}

// Hand implements transport.Queue.
func (q *handing) Hand(j transport.Job) error { return q.q.Hand(j, q.seq, &q.Call, q.site) }

// now makes a call on a stream that its transport makes at once, unless the stream is captured.
func (c *call) now(q *cudaexec.Queue) (done bool, err error) {
	err = q.Ready()
	if q.Lane() != nil {
		return false, nil
	}
	if err == nil {
		err = c.onDeviceNow(q)
	}
	q.Count() // what may still run on the device
	return true, err
}

// beforeDevice does what comes before a call on device memory is enqueued: it is done then where its transport makes it at
// once, and compared with those of the other ranks where --check asks for it.
func (c *call) beforeDevice(q exec.Queue) (done bool, err error) {
	if c.route.Host {
		return false, nil
	}
	if c.route.By.Caps().Blocks {
		if done, err := c.now(onGPU(q)); done {
			return true, err
		}
	}
	if c.comm.w.check != verify.Off {
		return false, c.checkBefore(q)
	}
	return false, nil
}

// checkBefore is verify for a call on a stream of a GPU, in a turn of its own.
func (c *call) checkBefore(q exec.Queue) error {
	order := c.comm.w.order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	r := c.comm.recorder
	if q.Lane() == nil {
		c.begun = true
		r.BeginOnDevice(&c.Call, c.group)
	} else if c.Kind == coll.Group || c.Kind.Traits().Message {
		return nil // who captures a message need not have a peer who does
	} else { // what is captured is made, and counts, when it is replayed
		r.Enter(verify.Pack(&c.Call, c.group).Alone())
	}
	defer r.Leave()
	return c.verify()
}

// onDeviceNow makes a call from the goroutine that issues it, on a stream of its, or on that of the calls that block, for
// which it then waits.
func (c *call) onDeviceNow(q *cudaexec.Queue) error {
	st, w := c.comm, c.comm.w
	now := *c
	var turn uint64
	taken := false
	work, err := q.Now(&now, func() { turn, taken = w.order.Take(1), true })
	if !taken {
		return err
	}
	if e := w.order.Enter(turn); e != nil {
		return e
	}
	defer w.order.Leave()
	if err != nil {
		return err
	}
	p := st.recorder.Begin(&c.Call, c.group)
	defer st.recorder.Leave()
	if err := now.verify(); err != nil {
		return err
	}
	st.recorder.Note(p, &c.Call, c.group, c.memory(), nil)
	if err := now.make(transport.Bare{S: q.Stream()}, work); err != nil {
		return err
	}
	if q != w.blocking.q {
		return nil
	}
	return st.host.WaitStream(q.Stream())
}
