package exec

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// panicError is a panic of application code in a queue, with its stack.
type panicError struct {
	value  any
	stack  []byte
	kernel string // whose host function it was; "" for other code
}

// Error has the value of the panic, and the kernel.
func (p *panicError) Error() string {
	if p.kernel != "" {
		return fmt.Sprintf("panic in the host function of kernel %s: %v", p.kernel, p.value)
	}
	return fmt.Sprintf("panic: %v", p.value)
}

func (p *panicError) Stack() []byte { return p.stack }

// Guard turns a panic of fn into an error, which has the stack of it. It cannot do so with
// runtime.Goexit, as of t.Fatal, which ends the goroutine. On a goroutine of the framework's own
// the caller of Guard sees to that by Exited.
func Guard(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			if o, ok := v.(interface{ Origin() (any, []byte) }); ok { // raised again by host.Parallel
				v, stack = o.Origin()
			}
			err = &panicError{value: v, stack: stack}
		}
	}()
	return fn()
}

// Exited returns the error of a function that has ended its goroutine by runtime.Goexit. Functions
// that are deferred there return it.
func Exited() error { return &panicError{value: errExited, stack: debug.Stack()} }

var errExited = errors.New("runtime.Goexit ended the goroutine, as t.Fatal of a test does: return an error")

// GuardKernel is Guard for the host function of a kernel, which a panic names.
func GuardKernel(name string, fn func() error) error {
	err := Guard(fn)
	if p, ok := err.(*panicError); ok {
		p.kernel = name
	}
	return err
}
