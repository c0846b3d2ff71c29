package route

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/devmpi"
	"lockstep/spmd/internal/transport/nccl"
)

// backends is the registry: what can carry calls on device memory, the preferred first.
var backends = []transport.Backend{
	nccl.Backend,
	devmpi.Auto,
	devmpi.Staged,
	devmpi.Aware,
	devmpi.Between,
}

// second is the backend whose results --check both compares with those of one that Joins.
var second = devmpi.Auto

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

// ForDevicesOnly says whether a value of --collectives asks for what carries no host memory. MPI carries both.
func ForDevicesOnly(asked string) bool {
	return asked != devmpi.Auto.Name() && slices.ContainsFunc(backends, func(b transport.Backend) bool { return b.Name() == asked })
}

// Selection is the backend of a job.
type Selection struct {
	Backend transport.Backend
	Passed  string // why preferred ones are not used; "" where there are none
	Lacking error  // why the one that was asked for cannot be used, then on all ranks alike; nil where it can
}

// Select selects the backend that --collectives asks for, or the first of the registry that all ranks can use. It comes
// before the device is opened.
//
// Collective over the ranks of h, which are all.
func Select(h control.Comm, asked string) (Selection, error) { return choose(backends, h, asked) }

// choose is Select from a list.
func choose(list []transport.Backend, h control.Comm, asked string) (Selection, error) {
	var s Selection
	var passed []string
	for _, b := range list {
		if asked != auto && asked != b.Name() {
			continue
		}
		s.Backend = b
		lacking, err := control.First(h, b.Probe())
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
		passed = append(passed, fmt.Sprintf("%s is not used: %v", strings.ToUpper(b.Name()), lacking))
	}
	return s, fmt.Errorf("--collectives %s: %s", asked, strings.Join(passed, "; "))
}

// manyQueues has a device keep its streams apart: one that waits for the host must not hold up others, which share few
// queues of the device unless told. It comes before the device is opened.
func manyQueues() error {
	const name = "CUDA_DEVICE_MAX_CONNECTIONS"
	return os.Setenv(name, cmp.Or(os.Getenv(name), "32"))
}
