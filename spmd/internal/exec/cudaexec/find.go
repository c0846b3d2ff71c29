package cudaexec

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/control"
)

// NoGPU is the reason why a machine without GPUs runs on the host, which is no
// more than that; any other reason deserves a warning.
type NoGPU struct{ Reason error }

func (e NoGPU) Error() string { return e.Reason.Error() }

func (e NoGPU) Unwrap() error { return e.Reason }

// FailureCode returns how other ranks know the reason.
func (NoGPU) FailureCode() int64 { return CodeNoGPU }

// tooManyRanks is refused, not turned into a run on the host: it is nearly always
// a mistake in the command line.
type tooManyRanks struct{ error }

// FailureCode returns how other ranks know the reason.
func (tooManyRanks) FailureCode() int64 { return CodeTooMany }

// The codes of these reasons in a control.Failure.
const (
	CodeNoGPU = iota + 1
	CodeTooMany
)

// Find chooses among the GPUs that the rank sees, by their index. The ranks of a node, in their
// order, take the first one that none before them has. That is the local rank's if all see the
// same, and the only one if each sees its own. If ranks may share GPUs, those for which none is
// left take turns among those that they see.
//
// Collective over the ranks of the node. A failure has a code of control.Failure: CodeNoGPU or
// CodeTooMany.
func Find(node control.Exchange, share bool) (index int, err error) {
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
		return -1, NoGPU{errors.New("no GPU is visible")}
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
	index = firstFree(seen)
	if index < 0 && share {
		index = node.Rank() % n
	}
	if index < 0 {
		host, _ := os.Hostname() // empty if it has none
		return -1, tooManyRanks{fmt.Errorf("node %s has %d ranks, and local rank %d sees %d GPUs, "+
			"all taken by the ranks before it",
			host, node.Size(), node.Rank(), n)}
	}
	return index, nvrtc.Load()
}

// firstFree returns the index of the GPU of the last of the ranks: each in turn takes the first
// that it sees and nobody has; -1 if none is left.
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
			return 0, NoGPU{err} // the system has no driver, or no card, either
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
