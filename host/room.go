package host

import (
	"fmt"
	"math"
	"runtime"

	"golang.org/x/sys/unix"
)

// OpenBLAS maps a buffer at the first product of each core, and keeps it. It tries for ever if the
// limit on virtual memory leaves no room for it. Source: OpenBLAS 0.3.21, driver/others/memory.c,
// blas_memory_alloc.
const blasBuffer = 128 << 20

// reserveBuffers has OpenBLAS map its buffers, one for each core, if there is such a limit, or says
// that it cannot.
func reserveBuffers() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur == math.MaxUint64 {
		return nil
	}
	const margin = 64 << 20
	n := runtime.GOMAXPROCS(0)
	trial, err := unix.Mmap(-1, 0, n*blasBuffer+margin, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("OpenBLAS has no room for its buffers, %d of %d MiB, under the limit of %d MiB "+
			"on virtual memory (ulimit -v)",
			n, blasBuffer>>20, limit.Cur>>20)
	}
	if err := unix.Munmap(trial); err != nil {
		return err
	}
	takeBuffers(n)
	return nil
}
