package cudnn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
)

var names9 = []string{"libcudnn.so.9", "libcudnn_graph.so.9"}

// oldest is the first version whose backward pass needs no help: from 9.6 on it clears its sums
// itself.
const oldest = 90600

var path string // of the library; set by load

var load = sync.OnceValue(func() error {
	// Engines that are compiled at run time open NVRTC by name. Once it is loaded, from wherever,
	// that name finds it. If it is missing the library says so itself when an engine needs it.
	_ = nvrtc.Load()
	var err error
	if path, err = openLibrary(files()); err != nil {
		return errors.New("cudnn: cuDNN 9 cannot be used: " + strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if v := sysVersion(); v < oldest || v >= 100000 {
		return fmt.Errorf("cudnn: this is version %s, and attention wants %s or a later one of 9",
			text(v), text(oldest))
	}
	return nil
})

// files returns the names for the loader to search, then the files in CUDA's own folders that
// exist.
func files() []string {
	all := names9[:len(names9):len(names9)]
	for _, root := range []string{os.Getenv("CUDNN_HOME"), os.Getenv("CUDNN_PATH"), os.Getenv("CUDA_HOME"),
		os.Getenv("CUDA_PATH"), "/usr/local/cuda"} {
		for _, folder := range []string{"lib64", "lib"} {
			file := filepath.Join(root, folder, names9[0])
			if _, err := os.Stat(file); root != "" && err == nil {
				all = append(all, file)
			}
		}
	}
	return all
}

// Load loads cuDNN, once, and returns why it cannot be used, or nil. It looks for libcudnn.so.9 in
// the loader's folders, then in the lib64 and lib folders of $CUDNN_HOME, $CUDNN_PATH, $CUDA_HOME,
// $CUDA_PATH and /usr/local/cuda. The oldest version that serves is 9.6.
func Load() error { return load() }

// Version returns the version loaded, such as "9.14.0"; "" if Load fails.
func Version() string {
	if Load() != nil {
		return ""
	}
	return text(sysVersion())
}

// Path returns the file in use as the loader reports it; "" if Load fails.
func Path() string {
	if Load() != nil {
		return ""
	}
	return path
}

// text writes a version as cudnnGetVersion returns it.
func text(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// Handle is cuDNN opened for a device. It may be used from several goroutines and with several
// streams.
type Handle struct {
	mu sync.Mutex // the library's handle serves one stream at a time
	h  handle     // nil once closed
	d  *cuda.Device
}

// Open loads cuDNN if that has not happened, and opens it for a device. Source: cudnn_graph.h,
// cudnnCreate.
func Open(d *cuda.Device) (*Handle, error) {
	if err := Load(); err != nil {
		return nil, err
	}
	h, err := sysCreate(d.Bind())
	if err != nil {
		return nil, err
	}
	return &Handle{h: h, d: d}, nil
}

// Close frees h, after all that was made of it. Further calls do nothing. Source: cudnn_graph.h,
// cudnnDestroy.
func (h *Handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.h == nil {
		return nil
	}
	err := sysDestroy(h.h)
	h.h = nil
	return err
}

var errClosed = errors.New("cudnn: used after Close")
