package world

import (
	"fmt"
	"strings"

	"lockstep/cuda"
	"lockstep/cuda/cudnn"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/process"
	"lockstep/internal/readable"
	"lockstep/nccl"
	"lockstep/spmd/internal/transport/carriers"
)

// Versions returns the text of --version: the build, and the libraries that are found here, or why
// not.
func Versions(program string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, of %s\n", program, process.Build())
	each(func(library, found string) { fmt.Fprintf(&b, "%s: %s\n", library, found) })
	return b.String()
}

// Libraries are the versions of the libraries that are found here, or why one is not.
func Libraries() map[string]string {
	all := map[string]string{}
	each(func(library, found string) { all[library] = found })
	return all
}

// each calls f with the finding for each library.
func each(f func(library, found string)) {
	f("MPI", carriers.Processes.Library())
	line := func(library string, err error, found string) {
		if err != nil {
			found = "not found: " + readable.Line(err.Error())
		}
		f(library, found)
	}
	driver := cuda.DriverVersion()
	line("CUDA", cuda.Load(), fmt.Sprintf("%d.%d, of the driver", driver/1000, driver%1000/10))
	major, minor := nvrtc.Version()
	line("NVRTC", nvrtc.Load(), fmt.Sprintf("%d.%d", major, minor))
	err := nccl.Load()
	line("NCCL", err, nccl.VersionString())
	line("cuDNN", cudnn.Load(), cudnn.Version())
}
