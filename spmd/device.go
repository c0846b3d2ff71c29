package spmd

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/internal/kernels"
	"lockstep/nccl"
	"lockstep/spmd/internal/affinity"
	"lockstep/spmd/internal/control"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	"lockstep/spmd/internal/job"
)

// noGPU is the reason why a machine without GPUs runs on the host, which is no
// more than that; any other reason deserves a warning.
type noGPU struct{ error }

func (noGPU) FailureCode() int64 { return failureNoGPU }

// tooManyRanks is refused, not turned into a run on the host: it is nearly always
// a mistake in the command line.
type tooManyRanks struct{ error }

func (tooManyRanks) FailureCode() int64 { return failureTooMany }

// How the ranks know these reasons of another one: control.Failure's Code.
const (
	failureNoGPU = iota + 1
	failureTooMany
)

// chooseDevice opens the rank's GPU, or settles on the host, on all ranks alike.
//
// Collective over all ranks.
func (w *World) chooseDevice(node control.Comm) error {
	if w.cfg.Device == "host" {
		w.why = "--device host"
		return nil
	}
	defer w.startup.Begin("context")()
	index, err := -1, error(nil)
	if no := w.ranks.NoDevice(); no != nil {
		err = noGPU{no}
	} else {
		index, err = w.findGPU(node)
	}
	failure, err := w.firstFailure(err)
	if err != nil {
		return err
	}
	if failure == nil {
		w.why = "every rank has a GPU of its own"
		if err := w.chooseCarrier(); err != nil {
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
	if failure.Code == failureTooMany {
		what += "; start fewer ranks, or run on the host with --device host"
	}
	switch {
	case w.cfg.Device == "cuda":
		return Usage(fmt.Errorf("--device cuda: %s", what))
	case w.cfg.Collectives == "nccl" || strings.HasPrefix(w.cfg.Collectives, "mpi-"):
		return Usage(fmt.Errorf("--collectives %s: %s", w.cfg.Collectives, what))
	case failure.Code == failureTooMany:
		return Usage(errors.New(what))
	}
	w.agreed = false
	w.fellBack = failure.Code != failureNoGPU
	w.why = "no GPU: " + what
	if w.fellBack {
		w.why = "the GPU is not used: " + what
	}
	if w.cfg.Check == "both" {
		w.why += nothingToCompare
	}
	return nil
}

// useGPU has the world work on a GPU; nil where it could not be opened.
func (w *World) useGPU(g *cudaexec.GPU) {
	if g != nil {
		w.gpu = cudaexec.NewDevice(g, &fillKernel.k, w.fail)
		w.dev = w.gpu
	}
}

// findGPU chooses among the GPUs that the rank sees, by their index. The ranks
// of a node, in their order, take the first one that none before them has: the
// local rank's where all see the same, the only one where each sees its own.
func (w *World) findGPU(node control.Comm) (int, error) {
	const most, idBytes = 64, 48
	var mine [most * idBytes]byte
	n, err := visibleGPUs(func(i int, id string) {
		if i < most {
			copy(mine[i*idBytes:(i+1)*idBytes], id)
		}
	})
	all := make([]byte, len(mine)*node.Size())
	if e := node.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine[0]), len(mine), elem.Uint8); e != nil {
		return -1, e // MPI failed: nothing else matters
	}
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, noGPU{errors.New("no GPU is visible")}
	}
	seen := make([][]string, node.Rank()+1)
	for r := range seen {
		for i := range most {
			at := r*len(mine) + i*idBytes
			if id := strings.TrimRight(string(all[at:at+idBytes]), "\x00"); id != "" {
				seen[r] = append(seen[r], id)
			}
		}
	}
	index := firstFree(seen)
	if index < 0 {
		host, _ := os.Hostname() // empty where it has none
		return -1, tooManyRanks{fmt.Errorf("node %s has %d ranks, and local rank %d sees %d GPUs, all taken by the ranks before it",
			host, node.Size(), node.Rank(), n)}
	}
	return index, nvrtc.Load()
}

// firstFree returns the index of the GPU of the last of the ranks: each in turn takes
// the first that it sees and nobody has; -1 where none is left.
func firstFree(seen [][]string) int {
	taken := map[string]bool{}
	index := -1
	for _, ids := range seen {
		index = slices.IndexFunc(ids, func(id string) bool { return !taken[id] })
		if index >= 0 {
			taken[ids[index]] = true
		}
	}
	return index
}

// visibleGPUs calls each with the identity of every GPU that this process sees.
func visibleGPUs(each func(i int, id string)) (int, error) {
	if err := cuda.Load(); err != nil {
		if _, e := os.Stat("/proc/driver/nvidia"); e != nil || errors.Is(err, cuda.ErrNoDevice) {
			return 0, noGPU{err} // the system has no driver, or no card, either
		}
		return 0, err
	}
	n, err := cuda.Count()
	if err != nil {
		return 0, err
	}
	for i := range n {
		id, err := cuda.UUIDOf(i)
		if err != nil {
			return 0, err
		}
		each(i, id)
	}
	return n, nil
}

// firstFailure returns the failure of the first rank that has one, during the start; nil where none has.
//
// Collective over all ranks.
func (w *World) firstFailure(mine error) (*control.Failure, error) {
	return control.First(w.control.st.host, mine)
}

// loadKernels compiles what the program has declared and loads it, so that no
// launch waits for a compiler. The first rank of a node compiles, or finds the
// binary on disk; the others receive it.
//
// Collective over the ranks of the node.
func (w *World) loadKernels(node control.Comm) error {
	defer w.startup.Begin("kernels")()
	sources := kernels.All()
	same, err := w.sameSources(node, sources)
	if err != nil {
		return err
	}
	images := make([][]byte, len(sources))
	if node.Rank() == 0 || !same {
		images, err = w.gpu.GPU.Compile(sources, w.threads)
	}
	if same {
		err = shareImages(node, images, err)
	}
	if err != nil {
		return err
	}
	return w.gpu.GPU.Load(sources, images)
}

// sameSources says whether all ranks of the node have the same sources and the
// same architecture.
func (w *World) sameSources(node control.Comm, sources []kernels.Source) (bool, error) {
	h := fnv.New64a()
	for _, s := range sources {
		for _, text := range append([]string{s.Key()}, s.Names...) {
			h.Write([]byte(text)) // never fails
			h.Write([]byte{0})
		}
	}
	v, err := control.Range(node, int64(h.Sum64())+int64(w.gpu.GPU.Capability()))
	return v.One(), err
}

// shareImages copies rank 0's images to the other ranks of the node; failure is
// that of rank 0.
func shareImages(node control.Comm, images [][]byte, failure error) error {
	sizes := make([]int64, len(images)+1)
	for i, b := range images {
		sizes[i+1] = int64(len(b))
	}
	if failure != nil {
		sizes[0] = 1
	}
	if err := node.Broadcast(unsafe.Pointer(&sizes[0]), len(sizes), elem.Int64, 0); err != nil {
		return err
	}
	if sizes[0] != 0 {
		if failure == nil {
			failure = errors.New("the first rank of the node could not compile the kernels")
		}
		return failure
	}
	for i := range images {
		if n := sizes[i+1]; node.Rank() != 0 {
			images[i] = make([]byte, n)
		}
		if err := node.Broadcast(unsafe.Pointer(&images[i][0]), len(images[i]), elem.Uint8, 0); err != nil {
			return err
		}
	}
	return nil
}

// startGPU makes everything that a world with a GPU has. A failure of one rank is
// every rank's.
//
// Collective over all ranks.
func (w *World) startGPU(node control.Comm) error {
	for _, st := range w.comms { // those made before the device was chosen
		st.onGPU()
	}
	if err := w.stayNear(node); err != nil {
		return err
	}
	err := w.loadKernels(node)
	if err == nil {
		err = w.gpu.OpenStaging()
	}
	if err == nil {
		w.blocking, err = w.NewStreamPriority("blocking calls", High)
	}
	if err := w.mustAgree(err); err != nil || w.Size() == 1 {
		return err
	}
	world := w.Comm.st
	if w.byMPI {
		if w.cfg.Check == "both" {
			w.why += nothingToCompare
		}
		return w.startMPI()
	}
	// Not agreed upon: the others may be waiting in NCCL for a rank that failed.
	if err := w.openNCCL(world, nil, 0, 0); err != nil {
		return fmt.Errorf("%w; --collectives mpi does without NCCL", err)
	}
	defer w.startup.Begin("nccl")()
	if w.nodes == 1 {
		n := w.NodeComm.st
		n.shareDevice(&world.router)
	} else if err := w.openNCCL(w.NodeComm.st, world, w.node, node.Rank()); err != nil {
		return err
	}
	if nccl.Version() >= 21900 { // from which it allocates and registers memory
		w.symmetric = newSymmetric(w)
	}
	err = w.warmUp()
	if w.nodes > 1 {
		w.ncclSockets = job.Sockets()
	}
	if err == nil && w.cfg.Check == "both" {
		err = w.openCross()
	}
	return err
}

// warmUp runs the first collective, in which NCCL connects the ranks.
func (w *World) warmUp() error {
	err := Barrier(w.Comm.On(w.blocking))
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

// closeDevice ends what streams, events and memory there are. Nothing runs any more.
func (w *World) closeDevice() error {
	if w.dev == nil {
		return nil
	}
	err := w.dev.Close()
	if w.symmetric != nil {
		err = errors.Join(err, w.symmetric.pool.Close())
	}
	return err
}

// describeGPU adds to the start line what is known of the GPU and its libraries.
func describeGPU(line *zerolog.Event, g *cudaexec.GPU, ranks int) *zerolog.Event {
	major, minor := nvrtc.Version()
	v := cuda.DriverVersion()
	line = line.Int("gpu", g.Dev.Index()).Str("pci", g.Dev.PCI()).Str("cuda", fmt.Sprintf("%d.%d", v/1000, v%1000/10)).
		Str("nvrtc", fmt.Sprintf("%d.%d", major, minor))
	if driver, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		line = line.Str("driver", strings.TrimSpace(string(driver)))
	}
	if v := nccl.VersionString(); ranks > 1 && v != "" {
		line = line.Str("nccl", v)
	}
	return line
}

// stayNear keeps this process to the cores near its GPU, where nobody has bound it, and
// shares them out among the ranks that have the same. Collective over the node.
func (w *World) stayNear(node control.Comm) error {
	list, near := affinity.NearGPU("/sys", w.gpu.GPU.Dev.PCI())
	if list != "" {
		if err := affinity.Keep(&near); err != nil {
			w.Log.Warn().Err(err).Msg("this process may run far from its GPU")
		} else {
			w.cores = list + ", near the GPU"
		}
	}
	return w.findThreads(node)
}
