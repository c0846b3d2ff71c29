package route

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/carriers"
)

// backends is the registry: what can carry calls on device memory, the preferred first.
var backends = []transport.Backend{
	carriers.NCCLBackend,
	byMPI{},
	carriers.PeersBackend,
	carriers.AwareBackend,
	carriers.StagedBackend,
}

// auto is the value of --collectives that leaves the choice to the registry.
const auto = "auto"

// Names are the values of --collectives.
func Names() []string {
	names := []string{auto}
	for _, b := range backends {
		names = append(names, b.Name())
	}
	return names
}

// ForDevicesOnly reports whether a value of --collectives asks for what carries no host memory. MPI
// carries both.
func ForDevicesOnly(asked string) bool {
	return asked != byMPI{}.Name() &&
		slices.ContainsFunc(backends, func(b transport.Backend) bool { return b.Name() == asked })
}

// SharesGPUs reports whether ranks may share a GPU with a value of --collectives. NCCL refuses
// that, and kernels that wait for each other on one GPU do so in turns of milliseconds.
func SharesGPUs(asked string) bool { return asked == carriers.StagedBackend.Name() }

// Selection is the backend of a job.
type Selection struct {
	Backend transport.Backend
	Passed  string // why preferred ones are not used; "" if there are none
	Lacking error  // why the one that was asked for cannot be used, then on all ranks alike; nil if it can
}

// Select selects the backend that --collectives asks for, or the first of the registry
// that all ranks can use. It comes before the driver is initialised, which reads then
// how many queues a device has.
//
// Collective over the ranks of h, which are all.
func Select(h transport.Host, asked string) (Selection, error) { return choose(backends, h, asked) }

// choose is Select from a list.
func choose(list []transport.Backend, h transport.Host, asked string) (Selection, error) {
	var s Selection
	var passed []string
	for _, b := range list {
		if asked != auto && asked != b.Name() {
			continue
		}
		s.Backend = b
		mine := b.Probe(h)
		lacking, err := control.First(h, mine)
		switch {
		case err != nil:
			return s, err
		case lacking == nil:
			s.Passed = strings.Join(passed, "; ")
			if !b.Joins() {
				err = manyQueues()
			}
			return s, err
		case asked != auto:
			s.Lacking = lacking
			return s, nil
		}
		if !errors.Is(mine, carriers.ErrNone) { // else it is no way at all, as it is meant
			passed = append(passed, fmt.Sprintf("%s is not used: %v", strings.ToUpper(b.Name()), lacking))
		}
	}
	return s, fmt.Errorf("--collectives %s: %s", asked, strings.Join(passed, "; "))
}

// manyQueues has a device keep its streams apart: one that waits for the host must not
// hold up others, which share few queues of the device unless told. Not more, nor for
// those that Join: all processes on an H200 have about 500 queues together, and a context
// with 32 takes a second to make.
func manyQueues() error {
	const name = "CUDA_DEVICE_MAX_CONNECTIONS"
	settingQueues.Lock()
	defer settingQueues.Unlock()
	if os.Getenv(name) != "" {
		return nil // also by another rank of the process, whose libraries may be reading the environment
	}
	return os.Setenv(name, "32")
}

var settingQueues sync.Mutex
