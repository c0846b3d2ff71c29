package text

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// InputError marks an error that is about the user's input, not about the program or the machine.
type InputError struct{ error }

// AsInput marks an error as one about the input.
func AsInput(err error) error { return InputError{err} }

// BadInput is fmt.Errorf for errors about the input.
func BadInput(format string, args ...any) error { return AsInput(fmt.Errorf(format, args...)) }

// OpenRegular opens a file to read it. A name that has become a pipe or a folder is an error:
// opening a pipe would wait for its writer.
func OpenRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// ShortPath returns err with only the last part of a path.
func ShortPath(err error, path string) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", filepath.Base(path), p.Err)
	}
	return err
}
