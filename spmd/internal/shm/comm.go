// Package shm carries collectives and messages through memory that ranks of a node share. Its
// NodeComm is one of package cudampi in which small calls take that way: MPI costs more.
package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cudampi"
	"lockstep/internal/elem"
)

// NodeComm is a cudampi.Comm whose small calls go through memory that its ranks share. Its calls
// keep the rules of cudampi.Comm's.
//
// Memory carries AllReduce, ReduceScatter, Scan, ExScan, AllGather and AllToAll of up to 32 KiB,
// counted over all parts, and Broadcast of up to 16 KiB. It carries messages to other ranks of up
// to 8 KiB on 2 to 4 ranks, 4 on 8 and 0.5 on 64. If a rank brings another call, count, type,
// operation or root than the others, that is an error on every rank, and MPI is not entered. In a
// Broadcast through memory it is an error on ranks that differ from the root. Ranks that share no
// memory learn it from heartbeats. Where MPI fails before, the end of the job says how they differ.
type NodeComm struct {
	*cudampi.Comm
	s   *shared // nil if nothing is shared
	mem []byte  // that all ranks share
}

// Share takes c over, and has its ranks share memory, 0.6 MiB for each. They must be on one node, 2
// to 8 of them, or up to 64 that share cores. Otherwise, and after an error, MPI carries all calls,
// and the Comm can be used.
//
// Collective; it blocks. Source: memfd_create(2).
func Share(c *cudampi.Comm) (*NodeComm, error) {
	m := &NodeComm{Comm: c}
	yes, sharesCores, few, err := worthIt(c)
	if few {
		c.SleepSoon()
	}
	if err != nil || !yes {
		return m, err
	}
	mem, err := Map(c, c.Size()*sysSharedBytes(c.Size()))
	var s *shared
	if err == nil {
		table, word := c.CallsInC()
		if s = sysOpenShared(table, word, c.Rank(), c.Size(), sharesCores, mem); s == nil {
			err = c.Errorf("ShareMemory", cudampi.ErrNoMem, "no memory")
		}
	}
	ok, e := c.All(err == nil)
	if ok && e == nil {
		m.s, m.mem = s, mem
		return m, nil
	}
	if e = errors.Join(e, release(s, mem)); e != nil {
		return m, errors.Join(err, e)
	}
	return m, &Apart{err}
}

// Apart is the error of Share, on all ranks, where one of them cannot reach the memory of another.
type Apart struct{ Mine error } // of this rank; nil if it is another that cannot

// Error says this rank's cause.
func (a *Apart) Error() string {
	if a.Mine == nil {
		return "another rank cannot share memory"
	}
	return a.Mine.Error()
}

// worthIt reports whether the ranks of c are to share memory. It also reports whether they share
// cores, or have so few that threads for a device need them. Ranks that were all told to yield wait
// as if they shared cores. Collective.
//
// Ranks on several nodes share no memory, nor do too many ranks. Ranks that share cores may be
// more: a message costs them a wait for the core, and reading everybody's part does not.
func worthIt(c *cudampi.Comm) (yes, sharesCores, few bool, err error) {
	if c.Size() < 2 || c.Size() > mostRanks {
		return false, false, false, nil
	}
	node, err := c.SplitShared()
	if err != nil {
		return false, false, false, err
	}
	cores, err := coresOf(node)
	here := node.Size()
	if sharesCores = cores < here; !sharesCores && err == nil {
		sharesCores, err = node.All(yields())
	}
	if err := errors.Join(err, node.Close()); err != nil {
		return false, false, false, err
	}
	yes, err = c.All(here == c.Size() && (here <= ownCores || sharesCores))
	return yes, sharesCores, cores < 2*here, err
}

const yieldEnv = "OMPI_MCA_mpi_yield_when_idle"

// yields reports whether MPI was told that others need the cores of its ranks. Source: Open MPI,
// FAQ, "Can I oversubscribe nodes".
func yields() bool {
	told, err := strconv.ParseBool(os.Getenv(yieldEnv))
	return told && err == nil
}

// coresOf returns, the same on all ranks of a node, how many cores they
// may use together. Collective.
func coresOf(node *cudampi.Comm) (int, error) {
	mine := new(unix.CPUSet)
	if unix.SchedGetaffinity(0, mine) != nil { // there are more than it holds
		for i := range mine {
			mine[i] = ^mine[i]
		}
	}
	all := make([]unix.CPUSet, node.Size())
	if err := node.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), len(mine), elem.Uint64); err != nil {
		return 0, err
	}
	return together(all), nil
}

// together returns how many cores ranks have that may use these.
func together(ranks []unix.CPUSet) int {
	var all unix.CPUSet
	for _, set := range ranks {
		for i, word := range set {
			all[i] |= word
		}
	}
	return all.Count()
}

// Map returns bytes of memory, zeros, that all ranks of c share: a file of rank 0 without a name,
// which the others open through /proc. So it needs no folder with room for it, and no process
// leaves it behind. The caller unmaps it. It fails if the ranks are on several nodes.
//
// Collective; it blocks. It may fail on some ranks only.
func Map(c *cudampi.Comm, bytes int) (mem []byte, err error) {
	id := new([4]int64) // process, descriptor, and what tells the file from others
	fd := -1
	var file unix.Stat_t
	if c.Rank() == 0 {
		if fd, err = unix.MemfdCreate("lockstep", unix.MFD_CLOEXEC); err == nil {
			err = errors.Join(unix.Ftruncate(fd, int64(bytes)), unix.Fstat(fd, &file))
		}
		*id = [4]int64{int64(os.Getpid()), int64(fd), int64(file.Dev), int64(file.Ino)}
	}
	if err := c.Broadcast(unsafe.Pointer(id), len(id), elem.Int64, 0); err != nil {
		return nil, err
	}
	if c.Rank() != 0 {
		name := fmt.Sprintf("/proc/%d/fd/%d", id[0], id[1])
		if fd, err = unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			err = fmt.Errorf("open %s, of rank 0: %w: it may be in another container", name, err)
		} else if err = unix.Fstat(fd, &file); err == nil && (int64(file.Dev) != id[2] || int64(file.Ino) != id[3]) {
			err = fmt.Errorf("process %d here is not rank 0: that is in another container, with another numbering "+
				"of processes", id[0])
		}
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	_, e := c.All(err == nil) // all have opened it
	if fd >= 0 {
		err = errors.Join(err, unix.Close(fd))
	}
	return mem, errors.Join(err, e)
}

// release gives up this rank's view: the memory is there as long as another rank has it.
func release(s *shared, mem []byte) error {
	if s != nil {
		sysCloseShared(s)
	}
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// Close gives the Comm back; a second call does nothing, nor does one after cudampi.Stop.
//
// Collective: every rank calls it, when no communication on the Comm is under way.
func (c *NodeComm) Close() error {
	s, mem := c.s, c.mem
	c.s, c.mem = nil, nil
	return errors.Join(release(s, mem), c.Comm.Close())
}

// Here returns how many of the ranks are on this node. Collective; it blocks.
func (c *NodeComm) Here() (int, error) {
	node, err := c.SplitShared()
	if err != nil {
		return 0, err
	}
	return node.Size(), node.Close()
}
