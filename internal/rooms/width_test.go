package main

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// A line of Go has at most codeWidth columns, and a line that is a comment at most commentWidth.
// A tab counts as tabWidth columns.
const (
	codeWidth    = 120
	commentWidth = 100
	tabWidth     = 4
)

// narrow are the folders in which no line is too long. Their subfolders have lines of their own.
var narrow = []string{
	"apps/matvec",
	"apps/reduce",
	"apps/stencil",
	"apps/train",
	"apps/train/agree",
	"apps/train/batches",
	"apps/train/cost",
	"apps/train/decode",
	"apps/train/fp8",
	"apps/train/gpt",
	"apps/train/input",
	"apps/train/kernels",
	"apps/train/layout",
	"apps/train/modern",
	"apps/train/optim",
	"apps/train/run",
	"apps/train/text",
	"apps/train/trainer",
	"apps/train/traintest",
	"apps/train/weights",
	"bench",
	"bench/collective",
	"bench/harness",
	"bench/model",
	"bench/plots",
	"bench/plots/plotstest",
	"bench/rank",
	"bench/sweep",
	"bench/train",
	"cuda",
	"cuda/cublas",
	"cuda/cudnn",
	"cuda/cufft",
	"cuda/nvml",
	"cuda/nvrtc",
	"cuda/telemetry",
	"cudampi",
	"docs",
	"docs/examples",
	"docs/examples/allocate",
	"docs/examples/broadcastzeros",
	"docs/examples/conditional",
	"docs/examples/conjugate",
	"docs/examples/events",
	"docs/examples/fft",
	"docs/examples/gradient",
	"docs/examples/graph",
	"docs/examples/graphmessages",
	"docs/examples/group",
	"docs/examples/hello",
	"docs/examples/hybrid",
	"docs/examples/kmeans",
	"docs/examples/managed",
	"docs/examples/matvec",
	"docs/examples/modelparallel",
	"docs/examples/nbody",
	"docs/examples/recover",
	"docs/examples/reduce",
	"docs/examples/refused",
	"docs/examples/ring",
	"docs/examples/samplesort",
	"docs/examples/sequence",
	"docs/examples/slices",
	"docs/examples/sparse",
	"docs/examples/staging",
	"docs/examples/sweep",
	"docs/examples/training",
	"host",
	"internal/amount",
	"internal/campaign",
	"internal/ccall",
	"internal/commtest",
	"internal/devkernel",
	"internal/dl",
	"internal/elem",
	"internal/emulate",
	"internal/fakelib",
	"internal/figure",
	"internal/help",
	"internal/inkernel",
	"internal/kernels",
	"internal/launcher",
	"internal/live",
	"internal/mix",
	"internal/mpirun",
	"internal/nearest",
	"internal/outfile",
	"internal/plain",
	"internal/procfs",
	"internal/pty",
	"internal/ranges",
	"internal/rooms",
	"internal/runlog",
	"internal/safetensors",
	"internal/signals",
	"internal/stdio",
	"internal/stepdir",
	"internal/suite",
	"internal/terminal",
	"internal/translate",
	"internal/translate/cpp",
	"internal/translate/owned",
	"internal/translate/source",
	"internal/version",
	"internal/watch",
	"launch",
	"launch/batch",
	"launch/completion",
	"launch/doctor",
	"launch/exit",
	"launch/hosts",
	"launch/launch-probe",
	"launch/plan",
	"launch/plot",
	"launch/scaffold",
	"launch/scaffold/kinds/solver",
	"launch/scaffold/kinds/stencil",
	"launch/scaffold/kinds/sweep",
	"launch/scaffold/kinds/train",
	"launch/slurm",
	"launch/status",
	"launch/trace",
	"nccl",
	"spmd",
	"spmd/arrayfile",
	"spmd/attention",
	"spmd/blas",
	"spmd/checkpoint",
	"spmd/ddp",
	"spmd/fft",
	"spmd/gokernel",
	"spmd/gokernel/sample",
	"spmd/internal/affinity",
	"spmd/internal/calls",
	"spmd/internal/coll",
	"spmd/internal/control",
	"spmd/internal/dashboard",
	"spmd/internal/exec",
	"spmd/internal/exec/cudaexec",
	"spmd/internal/exec/hostexec",
	"spmd/internal/files",
	"spmd/internal/job",
	"spmd/internal/scale",
	"spmd/internal/transport",
	"spmd/internal/transport/aware",
	"spmd/internal/transport/inproc",
	"spmd/internal/transport/mpi",
	"spmd/internal/transport/nccl",
	"spmd/internal/transport/peers",
	"spmd/internal/transport/route",
	"spmd/internal/transport/self",
	"spmd/internal/transport/staged",
	"spmd/internal/verify",
	"spmd/internal/world",
	"spmd/matrix",
	"spmd/progress",
	"spmd/radix",
	"spmd/random",
	"spmd/runfolder",
	"spmd/sparse",
	"spmd/spmdgen",
	"spmd/spmdtest",
	"spmd/timing",
	"spmd/vector",
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// wide is the lines of a folder that are too long.
type wide struct{ code, comments []token.Position }

// measure appends the lines of a file that are too long. It leaves out generated files, lines
// inside raw strings, which are data, and directives, which cannot be broken.
func (w *wide) measure(name string, src []byte) {
	if generated.Match(src) {
		return
	}
	set := token.NewFileSet()
	file := set.AddFile(name, -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	first := map[int]string{} // the token that a line begins with
	data := map[int]bool{}    // the line begins inside a token
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		line := file.Line(pos)
		if _, ok := first[line]; !ok {
			first[line] = text
		}
		if tok == token.STRING {
			for i := range strings.Count(text, "\n") {
				data[line+1+i] = true
			}
		}
	}
	for i, line := range bytes.Split(src, []byte("\n")) {
		n := i + 1
		columns := utf8.RuneCount(line) + (tabWidth-1)*bytes.Count(line, []byte("\t"))
		at := token.Position{Filename: name, Line: n, Column: columns}
		switch text := first[n]; {
		case data[n]:
		case strings.HasPrefix(text, "// "):
			if columns > commentWidth {
				w.comments = append(w.comments, at)
			}
		case strings.HasPrefix(text, "//"): // a directive
		case columns > codeWidth:
			w.code = append(w.code, at)
		}
	}
}

// No line in the folders of narrow is too long. With -v the test says how many are in the others.
func TestWidth(t *testing.T) {
	folders := map[string]*wide{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		if folders[dir] == nil {
			folders[dir] = &wide{}
		}
		folders[dir].measure(name, src)
		return nil
	})
	if err != nil || len(folders) < 30 {
		t.Fatalf("%d folders: %v", len(folders), err)
	}
	code, comments := 0, 0
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		w := folders[dir]
		code += len(w.code)
		comments += len(w.comments)
		if !slices.Contains(narrow, dir) {
			if testing.Verbose() {
				t.Logf("%s: %d lines of code and %d of comments are too long", dir, len(w.code), len(w.comments))
			}
			continue
		}
		for _, at := range w.code {
			t.Errorf("%s:%d has %d columns, code has at most %d", at.Filename, at.Line, at.Column, codeWidth)
		}
		for _, at := range w.comments {
			t.Errorf("%s:%d has %d columns, a comment has at most %d", at.Filename, at.Line, at.Column, commentWidth)
		}
	}
	t.Logf("in all: %d lines of code and %d of comments are too long", code, comments)
	for _, dir := range narrow {
		if folders[dir] == nil {
			t.Errorf("%s is held narrow, but has no Go", dir)
		}
	}
}

func TestMeasureWidth(t *testing.T) {
	long := strings.Repeat("x", codeWidth-len("var ")+1)
	for _, tc := range []struct {
		what, src      string
		code, comments int
	}{
		{"code", "var " + long, 1, 0},
		{"code as wide as it may be", "var " + long[1:], 0, 0},
		{"code behind a tab", "func f() {\n\tvar " + long[tabWidth:] + " int\n}", 1, 0},
		{"a comment", "// " + long[:commentWidth-len("// ")+1], 0, 1},
		{"a comment as wide as it may be", "// " + long[:commentWidth-len("// ")], 0, 0},
		{"code with a comment", "var x int // " + long, 1, 0},
		{"a raw string", "var x = `\n" + long + long + "\n`", 0, 0},
		{"two slashes in a raw string", "var x = `\n// " + long + "\n`", 0, 0},
		{"a directive", "//go:generate " + long, 0, 0},
		{"a generated file", "// Code generated by x; DO NOT EDIT.\n\nvar " + long, 0, 0},
	} {
		var w wide
		w.measure("x.go", []byte("package x\n\n"+tc.src+"\n"))
		if len(w.code) != tc.code || len(w.comments) != tc.comments {
			t.Errorf("%s: %d lines of code and %d of comments are too long, want %d and %d",
				tc.what, len(w.code), len(w.comments), tc.code, tc.comments)
		}
	}
}
