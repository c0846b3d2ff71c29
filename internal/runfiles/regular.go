package runfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

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

// ReadSmall reads a file of up to 64 MiB. The error does not repeat the folder.
func ReadSmall(path string) ([]byte, error) {
	const most = 64 << 20
	f, st, err := OpenRegular(path)
	if err != nil {
		return nil, ShortPath(err, path)
	}
	defer f.Close()
	if st.Size() > most {
		return nil, fmt.Errorf("%s: %d bytes, more than %d", filepath.Base(path), st.Size(), most)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return b, NotLFS(b, path)
}

// NotLFS refuses a pointer to a file that Git LFS has not fetched. head begins the file.
func NotLFS(head []byte, path string) error {
	if bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")) {
		return fmt.Errorf("%s: a pointer file of Git LFS, which stands for the file itself: git lfs pull fetches that",
			filepath.Base(path))
	}
	return nil
}

// ShortPath returns err with only the last part of a path.
func ShortPath(err error, path string) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", filepath.Base(path), p.Err)
	}
	return err
}
