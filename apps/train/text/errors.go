package text

import (
	"fmt"
)

// InputError marks an error that is about the user's input, not about the program or the machine.
type InputError struct{ error }

// AsInput marks an error as one about the input.
func AsInput(err error) error { return InputError{err} }

// BadInput is fmt.Errorf for errors about the input.
func BadInput(format string, args ...any) error { return AsInput(fmt.Errorf(format, args...)) }
