package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/cudnn"
	"lockstep/cuda/nvml"
	"lockstep/cuda/nvrtc"
	"lockstep/host"
	"lockstep/internal/dl"
	"lockstep/nccl"
)

// GPU is this rank's view of its node's GPUs.
type GPU struct {
	Devices []Device `json:"devices,omitempty"`
	Driver  string   `json:"driver,omitempty"` // "580.159.04", where NVML tells
	CUDA    string   `json:"cuda,omitempty"`   // that the driver supports: "13.0"
	// "all", "none", or the pairs that do not reach each other: "0-2 1-3"; "" if not known
	Peers  string `json:"peers,omitempty"`
	Err    string `json:"error,omitempty"` // why there is none
	Broken bool   `json:"broken"`          // there is a card or a driver, and it cannot be used
}

// Device is one GPU.
type Device struct {
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	NUMA    int    `json:"numa"`    // -1 if not told
	NVLinks int    `json:"nvlinks"` // that are up
}

// Library is one that is bound at run time.
type Library struct {
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
	Err     string `json:"error,omitempty"` // why it cannot be used
}

func gatherGPU() (GPU, map[string]Library) {
	libs := map[string]Library{}
	g, err := gpus()
	if err != nil {
		g.Err = oneLine(err)
		_, noDriver := os.Stat("/proc/driver/nvidia") // as package spmd decides
		g.Broken = noDriver == nil && !errors.Is(err, cuda.ErrNoDevice) || strings.Contains(g.Err, "this program needs")
		if !g.Broken {
			return g, libs
		}
	}
	libs["NCCL"], libs["NVRTC"] = loaded(nccl.Load, nccl.VersionString, nccl.Path),
		loaded(nvrtc.Load, nvrtcVersion, nvrtc.Path)
	libs["cuBLAS"] = byName("cublasCreate_v2", "libcublas.so.13", "libcublas.so.12")
	libs["cuBLASLt"] = byName("cublasLtCreate", "libcublasLt.so.13", "libcublasLt.so.12")
	libs["cuDNN"] = loaded(cudnn.Load, cudnn.Version, cudnn.Path)
	return g, libs
}

func gpus() (g GPU, err error) {
	if err := cuda.Load(); err != nil {
		return g, err
	}
	v := cuda.DriverVersion()
	g.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	n, err := cuda.Count()
	if err == nil {
		err = openDriver()
	}
	for i := 0; i < n && err == nil; i++ {
		d := Device{Name: deviceName(i), NUMA: -1}
		if d.UUID, err = cuda.UUIDOf(i); err != nil {
			break
		}
		if info, e := nvml.Facts(d.UUID); e == nil { // NVML adds to what CUDA knows, and may be missing
			g.Driver, d.NUMA, d.NVLinks = info.Driver, info.NUMA, info.NVLinks
		}
		g.Devices = append(g.Devices, d)
	}
	if err == nil && n == 0 {
		err = errors.New("no GPU is visible")
	}
	g.Peers = peers(n)
	return g, err
}

func peers(n int) string {
	var without []string
	for a := range n {
		for b := a + 1; b < n; b++ {
			there, known := canAccessPeer(a, b)
			back, known2 := canAccessPeer(b, a)
			if !known || !known2 {
				return ""
			}
			if !there || !back {
				without = append(without, fmt.Sprintf("%d-%d", a, b))
			}
		}
	}
	switch {
	case n < 2:
		return ""
	case len(without) == 0:
		return "all"
	case len(without) == n*(n-1)/2:
		return "none"
	}
	return strings.Join(without, " ")
}

func loaded(load func() error, version, path func() string) Library {
	if err := load(); err != nil {
		return Library{Err: oneLine(err)}
	}
	return Library{Version: version(), Path: path()}
}

func nvrtcVersion() string {
	major, minor := nvrtc.Version()
	return fmt.Sprintf("%d.%d", major, minor)
}

var fileVersion = regexp.MustCompile(`\.so\.([0-9.]+)$`)

// byName finds a library that only has to be there: its version is that in the name of its file.
func byName(symbol string, files ...string) Library {
	var f unsafe.Pointer
	path, err := dl.Open([]dl.Sym{{Name: symbol, Slot: &f}}, files...)
	if err != nil {
		return Library{Err: oneLine(err)}
	}
	l := Library{Path: path}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if m := fileVersion.FindStringSubmatch(path); m != nil {
		l.Version = m[1]
	}
	return l
}

func blas() Library {
	name := host.BLAS()
	if strings.HasPrefix(name, "OpenBLAS") {
		return Library{Version: strings.TrimPrefix(name, "OpenBLAS ")}
	}
	return Library{Err: name}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
