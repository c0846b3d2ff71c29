package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

func (j *judge) gpus() {
	j.each(Fail, func(f *Facts) (string, string) {
		if !f.GPU.Broken {
			return "", ""
		}
		return f.GPU.Err, "install NVIDIA's driver 525 or later (Debian: nvidia-driver; Ubuntu: " +
			"nvidia-driver-580), or run with --device host"
	})
	with := j.those(func(f *Facts) bool { return len(f.GPU.Devices) > 0 })
	if len(with) == 0 {
		return
	}
	j.each(Fail, func(f *Facts) (string, string) {
		if len(f.GPU.Devices) > 0 || f.GPU.Broken {
			return "", ""
		}
		what := "sees no GPU, while others do: all ranks would run on the host"
		if v := f.setting("CUDA_VISIBLE_DEVICES"); v != "" || f.has("CUDA_VISIBLE_DEVICES") {
			return fmt.Sprintf("%s (CUDA_VISIBLE_DEVICES=%q)", what, v),
				"unset CUDA_VISIBLE_DEVICES, or run with --device host"
		}
		return what, "leave the node out, ask Slurm for --gpus-per-node, or run with --device host"
	})
	j.differ(Warn, "the NVIDIA driver", "install the same driver on every node",
		func(f *Facts) string { return cmp.Or(f.GPU.Driver, f.GPU.CUDA) })
	j.differ(Warn, "the kind of GPU", "the slowest sets the pace: use nodes of one kind", func(f *Facts) string {
		if len(f.GPU.Devices) == 0 {
			return ""
		}
		return f.GPU.Devices[0].Name
	})
	j.each(Warn, func(f *Facts) (string, string) {
		if f.GPU.Peers == "" || f.GPU.Peers == "all" {
			return "", ""
		}
		what := "GPUs " + f.GPU.Peers + " do not reach each other's memory"
		if f.GPU.Peers == "none" {
			what = "no GPU reaches another's memory"
		}
		return what, "NCCL goes through the host's: see nvidia-smi topo -p2p r, and PCIe ACS in the firmware"
	})
}

// has reports whether a variable is set at all.
func (f *Facts) has(name string) bool {
	return slices.ContainsFunc(f.Settings, func(s string) bool { return strings.HasPrefix(s, name+"=") })
}

// Takes returns the GPU that package spmd opens on each rank of a node, by the GPUs that they see:
// each in turn takes the first that nobody has; "" if none is left.
func Takes(node []Facts) []string {
	taken := map[string]bool{}
	takes := make([]string, len(node))
	for i, f := range node {
		for _, d := range f.GPU.Devices {
			if !taken[d.UUID] {
				taken[d.UUID], takes[i] = true, d.UUID
				break
			}
		}
	}
	return takes
}

// placement looks for ranks that are left without a GPU of their own.
func (j *judge) placement() {
	for _, of := range j.nodes {
		var node []Facts
		all := map[string]bool{}
		single := 0 // ranks that see one GPU
		for _, i := range of {
			node = append(node, j.facts[i])
			for _, d := range j.facts[i].GPU.Devices {
				all[d.UUID] = true
			}
			if len(j.facts[i].GPU.Devices) == 1 {
				single++
			}
		}
		takes := Takes(node)
		var none, shared []int
		for k, i := range of {
			if f := &j.facts[i]; len(f.GPU.Devices) > 0 && takes[k] == "" {
				if f.has("CUDA_VISIBLE_DEVICES") && len(f.GPU.Devices) == 1 {
					shared = append(shared, i)
				} else {
					none = append(none, i)
				}
			}
		}
		n := len(all)
		j.add(Fail, none, fmt.Sprintf("%d ranks and %d GPUs on the node: none is left", len(of), n),
			fmt.Sprintf("at most %d ranks a node (mpirun --map-by ppr:%d:node, srun "+
				"--ntasks-per-node=%d), or --device host", n, n, n))
		for _, i := range shared {
			f := &j.facts[i]
			id := f.GPU.Devices[0].UUID
			owner := j.facts[of[slices.Index(takes, id)]]
			j.add(Fail, []int{i}, fmt.Sprintf("two ranks on one GPU: rank %d has %s, the only one "+
				"visible here (CUDA_VISIBLE_DEVICES=%s)", owner.Rank(), id, f.setting("CUDA_VISIBLE_DEVICES")),
				"unset CUDA_VISIBLE_DEVICES: each rank takes the GPU of its local rank")
		}
		if single == len(of) && n == len(of) && n > 1 {
			j.add(Warn, of, "each task sees one GPU: NCCL may not reach the others' memory directly",
				"let every task see all GPUs of its node: srun --gpus-per-node=N instead of "+
					"--gpus-per-task or --gpu-bind, or unset CUDA_VISIBLE_DEVICES")
		}
	}
}

// aware looks for an MPI that is wrong about GPU memory. With NCCL, only some ways of a program
// meet it.
func (j *judge) aware() {
	for _, level := range []string{Fail, Warn} {
		j.each(level, func(f *Facts) (string, string) {
			if f.MPI == nil || f.MPI.CUDA == nil || f.MPI.CUDA.Failure == "" {
				return "", ""
			}
			if nccl := f.Libraries["NCCL"]; (nccl.Err == "") != (level == Warn) {
				return "", ""
			}
			return fmt.Sprintf("MPI says it is CUDA-aware (%s), but a process that sent itself GPU memory %s",
					f.MPI.CUDA.Reason, f.MPI.CUDA.Failure),
				"use --collectives nccl or host-staged"
		})
	}
}

// packages are packages of Debian and Ubuntu, or NVIDIA's.
var packages = []struct{ library, install, without string }{
	{"NVRTC", "libnvrtc12, or NVIDIA's cuda-nvrtc-13-0", "no kernel can be compiled"},
	{"cuBLAS", "libcublas12, or NVIDIA's libcublas-13-0", "no matrix product runs on the GPU"},
	{"cuBLASLt", "libcublaslt12, or NVIDIA's libcublas-13-0", "no matrix product runs on the GPU"},
	{"NCCL", "libnccl2, of the same version on every node", "GPU memory goes through MPI, which is slower"},
}

func (j *judge) libraries() {
	for _, p := range packages {
		level := Warn
		if p.library == "NCCL" {
			level = Fail // its versions do not talk to each other
			if len(j.facts) == 1 {
				continue
			}
		}
		missing := Fail
		if p.library == "NCCL" {
			missing = Warn
		}
		j.each(missing, func(f *Facts) (string, string) {
			if l, ok := f.Libraries[p.library]; !ok || l.Err == "" || f.GPU.Broken {
				return "", ""
			}
			return fmt.Sprintf("%s: %s", p.without, f.Libraries[p.library].Err),
				"install " + p.install + ", or add its folder to LD_LIBRARY_PATH"
		})
		j.differ(level, p.library, "install "+p.install,
			func(f *Facts) string { return f.Libraries[p.library].Version })
	}
	j.each(Warn, func(f *Facts) (string, string) {
		return f.Libraries["OpenBLAS"].Err, "matrix products on the host take ten times as long: apt-get " +
			"install libopenblas0-pthread"
	})
	j.differ(Warn, "OpenBLAS", "results may differ in the last bits: install the same on every node",
		func(f *Facts) string {
			// without the kernels, which follow the processor
			version, _, _ := strings.Cut(f.Libraries["OpenBLAS"].Version, " ")
			return version
		})
}
