package carriers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
)

// Registers implements transport.Registrar: from 2.19 on NCCL allocates and registers memory.
func (t *NCCL) Registers() bool { return nccl.Version() >= 21900 }

var _ transport.Registrar = (*NCCL)(nil)

func (t *NCCL) Version() string { return nccl.VersionString() }

func (t *NCCL) AllocMemory(n int) (unsafe.Pointer, error) { return nccl.MemAlloc(t.dev, n) }

func (t *NCCL) FreeMemory(p unsafe.Pointer) error { return nccl.MemFree(t.dev, p) }

func (t *NCCL) Register(p unsafe.Pointer, n int, inUse bool) (transport.Registration, error) {
	if t.windows {
		w, err := t.Comm.RegisterWindow(p, n)
		if err != nil {
			return nil, err
		}
		return window{w}, nil
	}
	if inUse && messagesFirst(nccl.Version()) {
		return unregistered{}, nil
	}
	r, err := t.Comm.Register(p, n)
	if err == nil && messagesFirst(nccl.Version()) {
		err = t.collectiveFirst(p, n)
	}
	if err != nil {
		return nil, err
	}
	return registration{r}, nil
}

// messagesFirst reports whether collectives of a version of NCCL fault or hang on registered memory
// from which there were messages before any collective: they take an empty table of addresses.
// Source: NCCL, src/transport/p2p.cc, ipcRegisterBuffer has needUpdate from v2.23.4 on, and from
// v2.29.2 on fills the table for messages, too.
func messagesFirst(version int) bool { return version >= 22300 && version < 22900 }

// collectiveFirst makes a collective on new memory, which fills NCCL's table.
func (t *NCCL) collectiveFirst(p unsafe.Pointer, n int) error {
	s, err := t.dev.NewStream(0)
	if err != nil {
		return err
	}
	err = t.Comm.Group(s, []nccl.GroupCall{{Kind: nccl.Broadcast, Type: elem.Uint8, Dst: p, Src: p, N: n}})
	if err == nil {
		err = s.Synchronize()
	}
	return errors.Join(err, s.Close())
}

// noGraphRegister has graphs use the memory that is registered, and register none by themselves,
// for which no collective can be the first.
var noGraphRegister = sync.OnceValue(func() error {
	const name = "NCCL_GRAPH_REGISTER"
	if !messagesFirst(nccl.Version()) || os.Getenv(name) != "" {
		return nil
	}
	return os.Setenv(name, "0")
})

// registration is memory that NCCL's plain algorithms know.
type registration struct{ *nccl.Registration }

var _ transport.Registration = (*registration)(nil)

func (registration) Used() bool { return true }

// unregistered is memory that NCCL uses as any other.
type unregistered struct{}

var _ transport.Registration = (*unregistered)(nil)

func (unregistered) Used() bool { return false }

func (unregistered) Close() error { return nil }

// window is memory that NCCL's symmetric kernels reach on all ranks.
type window struct{ *nccl.Window }

var _ transport.Registration = (*window)(nil)

func (w window) Used() bool { return w.Registered() }

// Symmetric implements transport.Registrar. Windows exist from 2.27 on. NCCL takes its symmetric
// kernels wherever the buffers of a call lie in windows of the communicator, also at sizes at which
// its other algorithms are faster. So windows belong to a communicator of their own.
func (t *NCCL) Symmetric(rank int) (transport.Registrar, error) {
	if nccl.Version() < 22700 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), exec.Patience)
	defer cancel()
	c, err := t.Comm.Split(ctx, 0, rank, nccl.Config{})
	if err != nil {
		return nil, fmt.Errorf("a second communicator, for symmetric memory: %w", err)
	}
	s := NewNCCL(c, t.dev, t.word)
	s.windows = true
	return s, nil
}

// hasty reports whether symmetric kernels of a version of NCCL are launched early, and do not wait.
// Source: NCCL, src/enqueue.cc from v2.27.3 on has
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION. cudaGridDependencySynchronize is in
// src/device/symmetric/primitives.cuh to v2.27.7, and in generate.py from v2.30.7 on.
func hasty(version int) bool { return version >= 22800 && version < 23007 }

// Gains implements transport.Registrar.
// Source: NCCL 2.28, src/sym_kernels.cc, ncclSymkImplemented.
func (t *NCCL) Gains(k coll.Kind, e elem.Type, op elem.Op) bool {
	return k == coll.AllGather || op == elem.Sum && (e == elem.Float32 || e.Half())
}
