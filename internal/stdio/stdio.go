// Package stdio makes a process notice that its standard output or error is closed. Go's runtime
// opens /dev/null in their place, where results and causes would be lost without an error.
// Importing it is enough.
package stdio

// #include "stdio_closed.h"
import "C"

import "os"

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
