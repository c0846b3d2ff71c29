package sweep

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep/bench/measure"
	"lockstep/spmd/telemetry"
)

// ranksCommand returns the command line of this program as a rank of the sweep, on n of them, with
// the flags of the sweep.
func (s *sweep) ranksCommand(n int, list []measure.Case) ([]string, error) {
	cmd, err := s.Self(n, "sweep-rank", s.Flags.Args()...)
	cmd = append(cmd, "--collectives", s.collectives)
	return append(cmd, measure.CaseArgs(list)...), err
}

// measurements runs a program and returns its JSON lines.
func (s *sweep) measurements(cmd []string) ([]measure.Measured, error) {
	out, err := measure.Output(cmd...)
	if err != nil {
		return nil, err
	}
	all, err := measure.Lines[measure.Measured](out)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s printed no measurement: %q", cmd[0], out)
	}
	return all, err
}

// collectiveSides returns this framework and the peers on this machine, each measuring the
// cases on n ranks.
func (s *sweep) collectiveSides(n int, list []measure.Case) []side {
	if len(list) == 0 {
		return nil
	}
	sides := []side{{measure.Ours, n, func() ([]measure.Measured, error) {
		cmd, err := s.ranksCommand(n, list)
		if err != nil {
			return nil, err
		}
		return s.measurements(cmd)
	}}}
	for _, p := range s.present() {
		sides = append(sides, p.collectives(s, n, list)...)
	}
	return sides
}

// peer is another way to the same collectives, and how to find and run it.
type peer struct {
	flag        string
	name        string // that those of its sides begin with
	graphs      bool   // whether it can be captured in a graph
	missing     func(s *sweep) error
	collectives func(s *sweep, n int, list []measure.Case) []side
}

// ncclTests is the flag of a peer that has goals of its own.
const ncclTests = "nccl-tests"

var peers = []peer{
	{"c", "MPI from C", false, (*sweep).noC, (*sweep).cSides},
	{ncclTests, "nccl-tests", true, (*sweep).noNCCLTests, (*sweep).ncclSides},
	{"torch", "PyTorch", true, func(s *sweep) error { return s.noModule("torch") }, (*sweep).torchSides},
	{"mpi4py", "mpi4py", false, func(s *sweep) error { return s.noModule("mpi4py") }, (*sweep).mpi4pySides},
}

func peerNames() []string {
	var n []string
	for _, p := range peers {
		n = append(n, p.flag)
	}
	return n
}

// present returns the wanted peers that this machine has. The first call reports the missing ones.
func (s *sweep) present() []peer {
	if s.found == nil {
		s.found = []peer{}
		for _, p := range peers {
			if !slices.Contains(s.peers, p.flag) {
				continue
			}
			if err := p.missing(s); err != nil {
				fmt.Fprintf(os.Stderr, "bench: %s is left out: %v\n", p.name, err)
				continue
			}
			s.found = append(s.found, p)
		}
	}
	return s.found
}

func (s *sweep) has(flag string) bool {
	return slices.ContainsFunc(s.present(), func(p peer) bool { return p.flag == flag })
}

func (s *sweep) noC() error {
	if !s.onHost() {
		return fmt.Errorf("it measures host memory, and the device is a GPU")
	}
	_, err := s.C("collectives", "mpicc")
	return err
}

// cTypes are the element types of c/collectives.c.
var cTypes = []string{"float32", "float64", "int32", "int64"}

// ofTypes returns the cases whose types a peer knows.
func ofTypes(list []measure.Case, known []string) []measure.Case {
	return slices.DeleteFunc(slices.Clone(list),
		func(c measure.Case) bool { return !slices.Contains(known, c.DType.Name) })
}

func (s *sweep) cSides(n int, list []measure.Case) []side {
	if list = ofTypes(list, cTypes); len(list) == 0 {
		return nil
	}
	return []side{{"MPI from C", n, func() ([]measure.Measured, error) {
		program, err := s.C("collectives", "mpicc")
		if err != nil {
			return nil, err
		}
		cmd := measure.MPIRun(n, program, strconv.Itoa(s.Iters), strconv.Itoa(s.Warmup), s.InPlace.String())
		for _, c := range list {
			cmd = append(cmd, c.String())
		}
		return s.measurements(cmd)
	}}}
}

// noModule says why Python lacks a module.
func (s *sweep) noModule(name string) error {
	if _, err := measure.Output(s.python, "-c", "import "+name); err != nil {
		return fmt.Errorf("%s cannot import %s: install it, or name another Python by --python", s.python, name)
	}
	return nil
}

// torchrun returns the command line of torch_peer.py on n ranks.
func (s *sweep) torchrun(n int, what string, flags ...string) []string {
	return append([]string{s.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", strconv.Itoa(n),
		filepath.Join(s.pythonDir, "torch_peer.py"), what, "--device", s.DeviceName()}, flags...)
}

// torchGraph returns --graph of torch_peer.py, which has no graphs on the host.
func (s *sweep) torchGraph() string {
	if s.onHost() {
		return "off"
	}
	return s.Graph.String()
}

// torchTypes are the element types of torch_peer.py.
var torchTypes = []string{"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"}

func (s *sweep) torchSides(n int, list []measure.Case) []side {
	list = slices.DeleteFunc(ofTypes(list, torchTypes), func(c measure.Case) bool {
		return !c.Op.Torch(s.onHost())
	})
	if len(list) == 0 {
		return nil
	}
	return []side{{"PyTorch", n, func() ([]measure.Measured, error) {
		return s.measurements(s.torchrun(n, "collectives",
			append([]string{fmt.Sprintf("--iters=%d", s.Iters), fmt.Sprintf("--warmup=%d", s.Warmup),
				fmt.Sprintf("--graph-calls=%d", measure.GraphCalls), "--graph=" + s.torchGraph()},
				measure.CaseArgs(list)...)...))
	}}}
}

// mpi4pyTypes are the element types of mpi4py_peer.py.
var mpi4pyTypes = []string{"float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64"}

func (s *sweep) mpi4pySides(n int, list []measure.Case) []side {
	if list = ofTypes(list, mpi4pyTypes); len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	for i := range list { // it waits for each, and of large ones that takes long
		list[i].Calls = min(list[i].Calls, hostCalls, max(1, hostMoved/list[i].Bytes()))
	}
	memories := []string{"host"}
	if !s.onHost() {
		memories = nil
		if s.noModule("cupy") == nil {
			memories = append(memories, "staged")
			// Source: the parsable output of ompi_info(1), of a build with CUDA.
			info, err := measure.Output("ompi_info", "--parsable", "--all")
			if err == nil && strings.Contains(info, "mpi_built_with_cuda_support:value:true") {
				memories = append(memories, "aware")
			}
		}
	}
	var sides []side
	for _, memory := range memories {
		name := "mpi4py"
		if memory != "host" {
			name += " " + memory
		}
		sides = append(sides, side{name, n, func() ([]measure.Measured, error) {
			return s.measurements(measure.MPIRun(n,
				append([]string{s.python, filepath.Join(s.pythonDir, "mpi4py_peer.py"), "--memory", memory,
					fmt.Sprintf("--iters=%d", s.Iters), fmt.Sprintf("--warmup=%d", s.Warmup)},
					measure.CaseArgs(list)...)...))
		}})
	}
	return sides
}

func (s *sweep) noNCCLTests() error {
	if s.ncclTests == "" {
		return fmt.Errorf("name the folder of its programs by --nccl-tests")
	}
	if s.onHost() {
		return fmt.Errorf("it measures GPUs, and the device is the host")
	}
	_, err := os.Stat(filepath.Join(s.ncclTests, "all_reduce_perf"))
	return err
}

// ncclSides returns nccl-tests on plain and on symmetric memory. Without MPI it drives all GPUs
// from one process.
func (s *sweep) ncclSides(n int, list []measure.Case) []side {
	var sides []side
	for _, registered := range []string{"0", "2"} {
		sides = append(sides, side{"nccl-tests -R " + registered, n, func() ([]measure.Measured, error) {
			var all []measure.Measured
			for _, op := range s.ops {
				program := filepath.Join(s.ncclTests, op.NCCL)
				if _, err := os.Stat(program); op.NCCL == "" || err != nil {
					continue // older ones lack some
				}
				for _, t := range s.types {
					mine := slices.DeleteFunc(slices.Clone(list),
						func(c measure.Case) bool { return c.Op.Name != op.Name || c.DType.Name != t.Name })
					if len(mine) == 0 {
						continue
					}
					for _, graph := range s.Graph {
						for _, sizes := range s.ncclRuns() {
							lines, err := s.ncclTest(n, program, registered, op, t, graph, sizes)
							if err != nil {
								return nil, err
							}
							all = append(all, lines...)
						}
					}
				}
			}
			return all, nil
		}})
	}
	return sides
}

// ncclRuns returns the sizes in groups with the same number of calls: a run of nccl-tests has one
// number for all of its sizes.
func (s *sweep) ncclRuns() [][]int {
	var runs [][]int
	for i, size := range s.sizes {
		if i == 0 || s.callsOf(size) != s.callsOf(s.sizes[i-1]) {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], size)
	}
	return runs
}

// ncclTest runs one of nccl-tests' programs over sizes of one number of calls. Each of its cycles
// is an iteration of ours: the calls back to back, then one wait. It has as many iterations as
// ours, and as many for the warm-up.
func (s *sweep) ncclTest(n int, program, registered string, op measure.Operation, t measure.DType, graph bool,
	sizes []int) ([]measure.Measured, error) {
	cmd := []string{program, "-b", strconv.Itoa(sizes[0]), "-e", strconv.Itoa(sizes[len(sizes)-1]), "-f",
		strconv.Itoa(s.factor),
		// -a 3 takes the slowest rank
		"-d", t.NCCL, "-w", strconv.Itoa(s.Warmup), "-c", "1", "-a", "3", "-R", registered, "-N",
		strconv.Itoa(s.Warmup + s.Iters)}
	calls := s.callsOf(sizes[0])
	if graph {
		each, launches := measure.InGraph(calls)
		cmd, calls = append(cmd, "-n", strconv.Itoa(each), "-G", strconv.Itoa(launches)), each*launches
	} else {
		cmd = append(cmd, "-n", strconv.Itoa(calls))
	}
	if usesMPI(program) {
		cmd = measure.MPIRun(n, append(cmd, "-g", "1")...)
	} else {
		cmd = append(cmd, "-g", strconv.Itoa(n))
	}
	out, err := measure.Output(cmd...)
	if err != nil {
		return nil, err
	}
	all, err := ncclTable(out, op, t)
	if err != nil {
		return nil, err
	}
	if all, err = cycles(all, s.Warmup, s.Iters); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd, " "), err)
	}
	all = slices.DeleteFunc(all, func(m measure.Measured) bool {
		return !slices.Contains(s.InPlace, m.InPlace) && slices.Contains(op.Places, !m.InPlace)
	})
	for i := range all {
		all[i].Graph, all[i].Stream, all[i].Calls = graph, true, calls
		all[i].Symmetric = registered == "2"
	}
	return all, nil
}

// cycles groups the lines by size and place. The first cycles are the warm-up. Several given sizes
// may have become one through the division of the elements among the ranks.
func cycles(lines []measure.Measured, warmup, iters int) ([]measure.Measured, error) {
	of := map[measure.Kind][]measure.Measured{}
	var order []measure.Kind
	for _, m := range lines {
		if of[m.Kind] == nil {
			order = append(order, m.Kind)
		}
		of[m.Kind] = append(of[m.Kind], m)
	}
	var all []measure.Measured
	for _, k := range order {
		same := of[k]
		if len(same)%(warmup+iters) != 0 {
			return nil, fmt.Errorf("%d lines of %d bytes, want one for each of %d cycles",
				len(same), k.Bytes, warmup+iters)
		}
		m := middle(same) // wrong elements count in the warm-up, too
		var us []float64
		for _, c := range same[len(same)/(warmup+iters)*warmup:] {
			us = append(us, c.MedianUS)
		}
		m.Stats = telemetry.StatsOf(us)
		all = append(all, m)
	}
	return all, nil
}

// usesMPI reports whether a program is linked to an MPI library.
func usesMPI(program string) bool {
	f, err := elf.Open(program)
	if err != nil {
		return false // a script, which brings its own launcher
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	return err == nil && slices.ContainsFunc(libraries, func(l string) bool { return strings.HasPrefix(l, "libmpi") })
}

// ncclTable reads the table of one of nccl-tests' programs: a line for out of place and one for in
// place of each size. They have one time, the mean of the calls. A size without data is left out.
// Source: nccl-tests, src/util.cu: writeBenchmarkLinePreamble and writeBenchmarkLineBody.
func ncclTable(out string, op measure.Operation, t measure.DType) ([]measure.Measured, error) {
	const (
		place   = 5 // the column of the first time, behind size, count, type, redop and root
		columns = 4 // time, algbw, busbw, #wrong
	)
	var all []measure.Measured
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < place+2*columns {
			continue
		}
		bytes, err := strconv.Atoi(f[0])
		if err != nil || f[2] != t.NCCL {
			continue
		}
		if bytes == 0 {
			continue
		}
		for i, inPlace := range []bool{false, true} {
			body := f[place+i*columns:]
			us, err := strconv.ParseFloat(body[0], 64)
			if err != nil || !(us > 0) {
				return nil, fmt.Errorf("%s printed %q: %q is no time", op.NCCL, strings.TrimSpace(line), body[0])
			}
			m := measure.Measured{Kind: measure.Kind{App: "sweep", Op: op.Name, Dtype: t.Name,
				Elements: bytes / t.Size, Bytes: bytes, InPlace: inPlace}, OK: true}
			m.MinUS, m.MedianUS, m.P99US, m.MaxUS = us, us, us, us
			if body[3] != "N/A" {
				wrong, err := strconv.ParseFloat(body[3], 64)
				if err != nil {
					return nil, fmt.Errorf("%s printed %q: %q is no number of wrong elements",
						op.NCCL, strings.TrimSpace(line), body[3])
				}
				n := int(wrong)
				m.Wrong, m.OK = &n, n == 0
			}
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s printed no line of %s: %q", op.NCCL, t.NCCL, out)
	}
	return all, nil
}
