package exec

import (
	"fmt"
	"runtime/debug"
)

// panicError is a panic of application code in a queue, with its stack.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// Stack is that of the panic.
func (p *panicError) Stack() []byte { return p.stack }

// Guard turns a panic of fn into an error, which has the stack of it. runtime.Goexit counts as a panic too: the goroutine
// belongs to the queue.
func Guard(fn func() error) (err error) {
	finished := false
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			if o, ok := v.(interface{ Origin() (any, []byte) }); ok { // raised again by host.Parallel
				v, stack = o.Origin()
			}
			err = &panicError{v, stack}
		} else if !finished {
			err = &panicError{"runtime.Goexit in a stream", debug.Stack()}
		}
	}()
	err = fn()
	finished = true
	return err
}
