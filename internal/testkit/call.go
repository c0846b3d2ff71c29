package testkit

// static int call(void *f, void *p) { return ((int (*)(void *))f)(p); }
import "C"

import "unsafe"

// CallC calls the C function int f(void *), as the C code of another package would.
func CallC(f, p unsafe.Pointer) int { return int(C.call(f, p)) }
