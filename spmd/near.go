package spmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/ranges"
	"lockstep/internal/shm"
)

// A call to the driver takes up to twice as long from a core on another NUMA node than
// the GPU's, and so do copies through memory that was first touched there. So a rank that
// nobody has bound keeps to the cores near its GPU.

// nearGPU returns the cores near the GPU at a PCI address, as a list such as "0-15,32-47", if
// this process may use all cores that are online and they are some of these; "" where not.
// Source: Linux, Documentation/ABI/testing/sysfs-bus-pci, local_cpulist.
func nearGPU(sys, pci string) (list string, near unix.CPUSet) {
	read := func(file string) (string, unix.CPUSet) {
		b, err := os.ReadFile(filepath.Join(sys, file))
		if err != nil {
			return "", unix.CPUSet{} // not every machine tells
		}
		text := strings.TrimSpace(string(b))
		return text, parseCores(text)
	}
	_, online := read("devices/system/cpu/online")
	list, near = read("bus/pci/devices/" + strings.ToLower(pci) + "/local_cpulist")
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		return "", near
	}
	for i := range near {
		if online[i]&^mine[i] != 0 || near[i]&^mine[i] != 0 {
			return "", near // the launcher has bound this process
		}
	}
	if near.Count() == 0 || near.Count() == mine.Count() {
		return "", near
	}
	return list, near
}

// stayNear keeps this process to the cores near its GPU, where nobody has bound it, and
// shares them out among the ranks that have the same. Collective over the node.
func (w *World) stayNear(node *shm.Comm) error {
	list, near := nearGPU("/sys", w.gpu.dev.PCI())
	if list != "" {
		if err := keepTo(&near); err != nil {
			w.Log.Warn().Err(err).Msg("this process may run far from its GPU")
		} else {
			w.cores = list + ", near the GPU"
		}
	}
	return w.findThreads(node)
}

// parseCores reads a list of cores such as "0-3,8"; it is empty where that is none.
func parseCores(list string) (set unix.CPUSet) {
	for _, part := range strings.Split(list, ",") {
		lo, hi, ok := ranges.Span(part)
		if !ok || hi >= 64*len(set) {
			return unix.CPUSet{}
		}
		for i := lo; i <= hi; i++ {
			set.Set(i)
		}
	}
	return set
}

// keepTo binds all threads of this process to some cores, and those that they start.
func keepTo(set *unix.CPUSet) error {
	bound := map[int]bool{}
	for again := true; again; { // until there was no thread that one of the unbound had started
		again = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			id, err := strconv.Atoi(t.Name())
			if err != nil || bound[id] {
				continue
			}
			if err := unix.SchedSetaffinity(id, set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("sched_setaffinity: %w", err)
			}
			bound[id], again = true, true
		}
	}
	return nil
}
