package process

// #include "closed.h"
import "C"

import "os"

// Go's runtime opens /dev/null in place of closed streams, where results and causes would be lost
// without an error.
func init() {
	closed := int(C.closed_at_start())
	for fd, std := range map[int]**os.File{1: &os.Stdout, 2: &os.Stderr} {
		if closed>>fd&1 == 0 {
			continue
		}
		// The descriptor stays /dev/null, so that no later file takes it.
		f, err := os.Open(os.DevNull)
		if err != nil {
			continue
		}
		f.Close()
		*std = f // whose Write is an error
	}
}
