package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// module is the path of the project's module.
const module = "lockstep"

// room is packages that serve one purpose.
type room struct {
	name     string
	what     string
	packages []string // patterns of path.Match, below the module
	below    []string // rooms that its packages may import from; their own room is free
}

// house is every room, from the programs down.
var house = []room{
	{"programs", "what a user starts", []string{"apps/*", "bench", "docs/examples", "docs/examples/*",
		"launch/scaffold/kinds/*"},
		[]string{"measuring", "training", "model", "text", "helpers", "facade", "libraries", "tests",
			"basics"}},
	{"measuring", "what bench is made of", []string{"bench/*"},
		[]string{"launch", "helpers", "facade", "libraries", "tests", "basics"}},
	{"training", "a training run of apps/train",
		[]string{"apps/train/run", "apps/train/trainer", "apps/train/traintest"},
		[]string{"model", "text", "helpers", "facade", "libraries", "tests", "basics"}},
	{"model", "models and their kernels", []string{"apps/train/layout", "apps/train/ops", "apps/train/gpt"},
		[]string{"helpers", "facade", "libraries", "basics"}},
	{"text", "texts as tokens", []string{"apps/train/text"},
		[]string{"helpers", "facade", "basics"}},
	{"launch", "start and diagnose a job", []string{"launch", "launch/*"},
		[]string{"job", "mpi", "libraries", "basics"}},
	{"helpers", "on top of spmd", []string{"spmd/arrayfile", "spmd/attention", "spmd/blas", "spmd/checkpoint",
		"spmd/fft", "spmd/gokernel", "spmd/parallel", "spmd/random", "spmd/telemetry", "spmd/vector"},
		[]string{"facade", "libraries", "basics"}},
	{"generator", "kernels in Go become CUDA", []string{"spmd/spmdgen", "spmd/spmdgen/internal/cpp",
		"spmd/spmdgen/internal/ir"},
		[]string{"basics"}},
	{"tests", "tests on several ranks",
		[]string{"spmd/spmdtest", "internal/mpirun", "internal/testkit", "cudampi/commtest",
			"apps/internal/apptest", "internal/rooms", "internal/suite"},
		[]string{"facade", "node", "mpi", "libraries", "basics"}},
	{"facade", "what applications import", []string{"spmd", "spmd/dashboard", "spmd/hostdata",
		"spmd/internal/own", "spmd/library", "spmd/managed"},
		[]string{"world", "calls", "dashboard", "job", "verify", "exec", "trace", "control", "coll", "libraries",
			"basics"}},
	{"world", "a rank, from its start to its end", []string{"spmd/internal/world"},
		[]string{"calls", "dashboard", "job", "verify", "transport", "exec", "trace", "control", "coll", "libraries",
			"basics"}},
	{"calls", "a call, from its checks to its transport", []string{"spmd/internal/calls"},
		[]string{"verify", "transport", "exec", "trace", "control", "coll", "libraries", "basics"}},
	{"job", "start, flags, log, watchdog, end",
		[]string{"spmd/internal/job", "spmd/internal/watch"},
		[]string{"dashboard", "control", "coll", "basics"}},
	{"verify", "calls compared over ranks", []string{"spmd/internal/verify"},
		[]string{"transport", "node", "exec", "control", "coll", "mpi", "basics"}},
	{"transport", "which transport carries a call", []string{"spmd/internal/transport", "spmd/internal/transport/*"},
		[]string{"exec", "control", "coll", "node", "mpi", "libraries", "basics"}},
	{"node", "memory and GPUs that the ranks of a node share", []string{"spmd/internal/shm", "spmd/internal/peer"},
		[]string{"mpi", "coll", "libraries", "basics"}},
	{"exec", "devices, queues, events, graphs, memory", []string{"spmd/internal/exec", "spmd/internal/exec/*"},
		[]string{"trace", "control", "coll", "libraries", "basics"}},
	{"trace", "what a rank does, and when", []string{"spmd/internal/trace"},
		[]string{"control", "coll", "basics"}},
	{"dashboard", "what a job's page shows", []string{"spmd/internal/dashboard"}, nil},
	{"control", "agreement of the ranks, on the host", []string{"spmd/internal/control"},
		[]string{"coll", "basics"}},
	{"coll", "the table of collectives", []string{"spmd/internal/coll"},
		[]string{"basics"}},
	{"mpi", "MPI on host and device memory", []string{"cudampi"},
		[]string{"libraries", "basics"}},
	{"libraries", "bound at run time, and the host's kernels",
		[]string{"cuda", "cuda/*", "nccl", "host", "spmd/internal/kernels"},
		[]string{"basics"}},
	{"basics", "element types, errors, loading, text",
		[]string{"internal/*"}, // but those of the rooms above
		nil},
}

// pkg is a package as go list tells of it. Paths are below the module.
type pkg struct {
	path    string
	dir     string
	imports []string // of the module, without those of tests
	sources []string // Go, C and CUDA, without tests
}

// list returns the packages of the module that holds dir. It runs go list.
func list(dir string) ([]pkg, error) {
	cmd := exec.Command("go", "list",
		"-json=ImportPath,Dir,Imports,GoFiles,CgoFiles,CFiles,HFiles,IgnoredGoFiles,EmbedFiles", module+"/...")
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &errs)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir                                                        string
			Imports, GoFiles, CgoFiles, CFiles, HFiles, EmbedFiles, IgnoredGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		q := pkg{path: below(p.ImportPath), dir: p.Dir,
			sources: slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.CFiles, p.HFiles)}
		for _, name := range p.EmbedFiles {
			if slices.Contains([]string{".cu", ".cuh", ".h", ".c"}, path.Ext(name)) &&
				!slices.Contains(q.sources, name) {
				q.sources = append(q.sources, name)
			}
		}
		for _, name := range p.Imports {
			if strings.HasPrefix(name, module+"/") {
				q.imports = append(q.imports, below(name))
			}
		}
		pkgs = append(pkgs, q)
	}
}

func below(importPath string) string { return strings.TrimPrefix(importPath, module+"/") }

// roomOf returns the room of a package, or nil.
func roomOf(pkg string) *room {
	for i := range house {
		for _, pattern := range house[i].packages {
			if ok, err := path.Match(pattern, pkg); ok && err == nil {
				return &house[i]
			}
		}
	}
	return nil
}

// arrows returns which rooms import from which, without those that follow from others.
func arrows(pkgs []pkg) map[string][]string {
	to := map[string]map[string]bool{}
	for _, p := range pkgs {
		from := roomOf(p.path)
		for _, name := range p.imports {
			if r := roomOf(name); from != nil && r != nil && r != from {
				if to[from.name] == nil {
					to[from.name] = map[string]bool{}
				}
				to[from.name][r.name] = true
			}
		}
	}
	var reaches func(from, goal string, seen map[string]bool) bool
	reaches = func(from, goal string, seen map[string]bool) bool {
		if to[from][goal] {
			return true
		}
		for next := range to[from] {
			if !seen[next] {
				seen[next] = true
				if reaches(next, goal, seen) {
					return true
				}
			}
		}
		return false
	}
	drawn := map[string][]string{}
	for from, goals := range to {
		for _, goal := range slices.Sorted(maps.Keys(goals)) {
			implied := false
			for other := range goals {
				implied = implied || other != goal && reaches(other, goal, map[string]bool{from: true})
			}
			if !implied {
				drawn[from] = append(drawn[from], goal)
			}
		}
	}
	return drawn
}
