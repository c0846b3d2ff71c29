package plan

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/cli"
)

// planTime is how long a program may take to say how it would be divided.
const planTime = time.Minute

// measuredGPU is the default GPU of the settings if this machine has none: their estimates were
// measured on it.
const measuredGPU = "H200"

// settings asks the program for its flags on the GPUs of j: in lines for people, or as JSON. It
// returns nothing without GPUs, or if the program has no command for it.
func (j job) settings(s site, asJSON bool) []byte {
	if j.gpus == 0 && s.gpus == 0 || !j.even || j.nodes*j.most != j.ranks || !plans(j.prog) {
		return nil
	}
	format := "text"
	if asJSON {
		format = "json"
	}
	args := slices.Concat([]string{"plan", "--format", format, "--nodes", strconv.Itoa(j.nodes), "--gpus-per-node",
		strconv.Itoa(j.most), "--gpu", cmp.Or(j.gpu, s.gpu, measuredGPU)}, j.prog[1:])
	out, errs := answer(j.prog[0], args...)
	if out == nil {
		if out = bytes.TrimSpace(errs); asJSON {
			out, _ = json.Marshal(map[string]string{"error": string(out)}) // a string always can be
		}
	}
	return out
}

// plans reports whether a program has a command plan, and is not given another. It asks the program
// for completions.
func plans(prog []string) bool {
	if len(prog) > 1 && !strings.HasPrefix(prog[1], "-") || !UsesLockstep(prog[0]) {
		return false
	}
	out, _ := answer(prog[0], cli.CompleteRequest, "plan")
	return strings.HasPrefix(string(out), "plan\t")
}

// answer returns what a program prints on standard output, or nil if it fails, and on
// standard error.
func answer(program string, args ...string) (out, errs []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), planTime)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay, cmd.Stderr = time.Second, &said
	out, err := cmd.Output()
	if err != nil {
		if said.Len() == 0 {
			said.WriteString(program + " plan: " + err.Error())
		}
		return nil, said.Bytes()
	}
	return out, said.Bytes()
}

// gpuModel returns the kind of the first GPU of this machine's NVIDIA driver, or "". Source: the
// driver's README, "The /proc filesystem interface".
func gpuModel(proc string) string {
	files, _ := filepath.Glob(filepath.Join(proc, "driver/nvidia/gpus/*/information"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if model, ok := strings.CutPrefix(line, "Model:"); ok {
				return strings.TrimSpace(model)
			}
		}
	}
	return ""
}

// UsesLockstep reports whether a file is a program whose main function is spmd.Main, as far as one
// can tell without starting it.
func UsesLockstep(program string) bool {
	const module = "lockstep"
	path, err := exec.LookPath(program)
	// a test would take its arguments for names of tests
	if err != nil || strings.HasSuffix(filepath.Base(path), ".test") {
		return false
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return false
	}
	if info.Main.Path == module {
		return !strings.HasPrefix(info.Path, module+"/internal")
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return true
		}
	}
	return false
}
