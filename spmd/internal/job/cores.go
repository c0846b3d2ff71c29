package job

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/elem"
	"lockstep/internal/readable"
	"lockstep/spmd/internal/control"
)

// NearGPU returns the cores near the GPU at a PCI address, as a list such as "0-15,32-47". It
// returns "" unless this process may use all cores that are online and they are some of these.
//
// A call to the driver takes up to twice as long from a core on another NUMA node than the GPU's,
// and so do copies through memory that was first touched there. So a rank that nobody has bound
// keeps to the cores near its GPU.
// Source: Linux, Documentation/ABI/testing/sysfs-bus-pci, local_cpulist.
func NearGPU(sys, pci string) (list string, near unix.CPUSet) {
	_, online := readCores(sys, onlineCores)
	list, near = readCores(sys, "bus/pci/devices/"+strings.ToLower(pci)+"/local_cpulist")
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

// onlineCores is the file with the cores that are online. Source: Linux,
// Documentation/ABI/testing/sysfs-devices-system-cpu.
const onlineCores = "devices/system/cpu/online"

// readCores returns the list of cores in a file below /sys, and the cores;
// nothing if there is no such file.
func readCores(sys, file string) (string, unix.CPUSet) {
	b, err := os.ReadFile(filepath.Join(sys, file))
	if err != nil {
		return "", unix.CPUSet{} // not every machine tells
	}
	text := strings.TrimSpace(string(b))
	return text, parseCores(text)
}

// coresOfGo is the number of cores that the Go runtime found at start, or less by a quota.
var coresOfGo = runtime.GOMAXPROCS(0)

// ShareOfCores returns how many cores this rank may keep busy, and whether other ranks may use them
// too. Ranks of a node that are bound to the same cores divide them; a rank bound to its own has
// them all. Collective over the ranks of the node.
func ShareOfCores(node control.Exchange) (cores int, shared bool, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		set = unix.CPUSet{} // more cores than the set holds: as if all ranks shared them
		for i := range coresOfGo {
			set.Set(i)
		}
	}
	words := len(set)
	mine := make([]uint64, words)
	for i := range set {
		mine[i] = uint64(set[i])
	}
	all := make([]uint64, words*node.Size())
	if err := node.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine[0]), words, elem.Uint64); err != nil {
		return 0, false, err
	}
	sharing := 0
	for r := range node.Size() {
		for i, m := range mine {
			if m&all[r*words+i] != 0 {
				sharing++
				break
			}
		}
	}
	return max(1, min(set.Count(), coresOfGo)/sharing), sharing > 1, nil
}

// parseCores reads a list of cores such as "0-3,8". It returns nothing for other text.
func parseCores(list string) (set unix.CPUSet) {
	for _, part := range strings.Split(list, ",") {
		lo, hi, ok := readable.Span(part)
		if !ok || hi >= 64*len(set) {
			return unix.CPUSet{}
		}
		for i := lo; i <= hi; i++ {
			set.Set(i)
		}
	}
	return set
}

// KeepCores binds all threads of this process, and those that they start, to some cores.
func KeepCores(set *unix.CPUSet) error {
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
