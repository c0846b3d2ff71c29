package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
)

// layouts are ranks on hosts, and how many there are.
var layouts = []struct {
	hosts      string
	nodes, per int
}{
	{"h0:1,h1:1", 2, 1}, {"h0:2,h1:2", 2, 2}, {"h0:1,h1:1,h2:1", 3, 1}, {"h0:2,h1:2,h2:2", 3, 2},
}

// Every rank finds its host, its place there and its share of the cores.
func TestHostsPlaces(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 3)
	cores := runtime.GOMAXPROCS(0)
	for _, tc := range layouts {
		t.Run(tc.hosts, func(t *testing.T) {
			j := c.begin(t, append(where(tc.hosts), "-x", hostRankEnv+"=1"), "rank", "--device", "host")
			j.end(t, true)
			all := recordsIn[hostPlace](t, j.json.String())
			slices.SortFunc(all, func(a, b hostPlace) int { return a.Rank - b.Rank })
			var want []hostPlace
			for r := range tc.nodes * tc.per {
				want = append(want, hostPlace{fmt.Sprintf("h%d", r/tc.per), r, tc.nodes * tc.per, r % tc.per,
					tc.per, r / tc.per, tc.nodes, max(1, cores/tc.per)})
			}
			if !slices.Equal(all, want) {
				t.Errorf("%+v\nwant %+v", all, want)
			}
			j.said(t, fmt.Sprintf("nodes=%d ", tc.nodes), fmt.Sprintf("ranks=%d ", tc.nodes*tc.per),
				`mpi_tcp="eth0 (10.77.0.1)"`)
			c.settled(t, patience, "h0", "h1", "h2")
		})
	}
}

// NCCL has no symmetric kernels between nodes. The driver and NCCL are test doubles.
func TestHostsSymmetricMemory(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 2)
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	dir := c.path("doubles")
	testkit.Must(t, os.Mkdir(dir, 0o777))
	testkit.BuildCUDA(t, dir)
	testkit.BuildLibrary(t, dir, "libnccl.so.2", filepath.Join("..", "nccl", "testdata", "fakenccl.c"))
	for hosts, knows := range map[string]bool{"h0:1,h1:1": false, "h0:2": true} {
		options := where(hosts)
		for _, set := range []string{hostRankEnv + "=1", symmetricEnv + "=1", "LD_LIBRARY_PATH=" + dir,
			"FAKECUDA_DEVICES=2", "'FAKECUDA_NAME=NVIDIA H200'", "LOCKSTEP_CACHE=" + c.path("kernels")} {
			options = append(options, "-x", set)
		}
		j := c.begin(t, options, "rank", "--device", "cuda", "--collectives", "nccl")
		j.end(t, true)
		j.said(t, "collectives=nccl")
		said := j.log.String()
		if strings.Contains(said, "take no symmetric kernels") == knows {
			t.Errorf("%s: symmetric kernels, want %v:\n%s", hosts, knows, said)
		}
	}
}

// result is a line of JSON of an application.
type result struct {
	Ranks, Nodes int
	OK, Summary  bool
	Step         int
	Loss         float64
}

var smallApplications = map[string][]string{
	"reduce": {"--elements", "100000", "--iters", "5", "--json", "-"},
	"matvec": {"--rows", "100", "--cols", "1200", "--iters", "5", "--json", "-"},
}

// The applications are right on every layout.
func TestHostsApplications(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 3)
	one := losses(t, c.train(t, "h0:2", 12), 12)
	for _, tc := range layouts {
		for _, app := range []string{"reduce", "matvec"} {
			t.Run(app+" "+tc.hosts, func(t *testing.T) {
				j := c.begin(t, where(tc.hosts), app, append(smallApplications[app], "--device", "host")...)
				j.end(t, true)
				all := recordsIn[result](t, j.json.String())
				if len(all) != 1 || all[0] != (result{Ranks: tc.nodes * tc.per, Nodes: tc.nodes, OK: true}) {
					t.Errorf("%+v", all)
				}
			})
		}
		t.Run("train "+tc.hosts, func(t *testing.T) {
			sameLosses(t, one, losses(t, c.train(t, tc.hosts, 12), 12))
		})
	}
	for _, tc := range []struct {
		hosts, flags string
		apart        bool // ranks that divide layers are on several hosts
	}{{"h0:2,h1:2", "--tp 2", false}, {"h0:1,h1:1", "--tp 2", true}, {"h0:2,h1:2", "--tp 2 --pp 2", false},
		{"h0:2,h1:2", "--shard parameters", false}} {
		t.Run("train "+tc.flags+" "+tc.hosts, func(t *testing.T) {
			j := c.train(t, tc.hosts, 12, strings.Fields(tc.flags)...)
			sameLosses(t, one, losses(t, j, 12))
			if warned := strings.Contains(j.log.String(),
				"divide layers, and are on several nodes"); warned != tc.apart {
				t.Errorf("warned %v:\n%s", warned, j.log.String())
			}
		})
	}
	c.settled(t, patience, "h0", "h1", "h2")
}

// steps are the arguments of a run of train whose steps take some milliseconds.
func steps(c *network, n int) []string {
	return []string{"--device", "host", "--json", "-", "--data", c.path("text"), "--cache",
		c.path("cache"), "--layers", "2", "--channels", "64", "--heads", "2",
		"--seq", "64", "--batch", "1", "--global-batch", "12", "--val-batches", "1", "--sample", "0",
		"--steps", fmt.Sprint(n)}
}

// train runs train to its end.
func (c *network) train(t *testing.T, hosts string, n int, args ...string) *remote {
	t.Helper()
	c.write(t)
	j := c.begin(t, where(hosts), "train", append(steps(c, n), args...)...)
	j.end(t, true)
	return j
}

// write writes a text to learn.
func (c *network) write(t *testing.T) {
	t.Helper()
	var b strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&b, "%d and %d make %d\n", i, i*i, i+i*i)
	}
	testkit.Must(t, os.WriteFile(c.path("text"), []byte(b.String()), 0o666))
}

// losses are those of the steps that a job has made, up to step last.
func losses(t *testing.T, j *remote, last int) map[int]float64 {
	t.Helper()
	m := map[int]float64{}
	for _, r := range recordsIn[result](t, j.json.String()) {
		if r.Step > 0 && !r.Summary {
			m[r.Step] = r.Loss
		}
	}
	if _, ok := m[last]; !ok {
		t.Fatalf("no loss of step %d in\n%s", last, &j.json)
	}
	return m
}

// sameLosses compares the losses of a run with those of another for the same steps.
func sameLosses(t *testing.T, want, got map[int]float64) {
	t.Helper()
	for step, loss := range got {
		if math.Abs(loss-want[step]) > 1e-4 {
			t.Errorf("step %d: loss %v, want %v", step, loss, want[step])
		}
	}
}

// A rank on another host is killed after a checkpoint. The job ends everywhere and says who it was.
// It goes on from the folder that the hosts share, on more of them.
func TestHostsKilled(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 3)
	const n = 100
	whole := losses(t, c.train(t, "h0:2", n), n)
	save := []string{"--checkpoint", c.path("run"), "--save-every", "10"}
	j := c.begin(t, where("h0:2,h1:2"), "train", append(append(steps(c, n), save...), "--log-level", "debug")...)
	j.until(t, "steps=30") // it is saving the third one, so two are there
	pids := c.pids(t, "h1", "train")
	if len(pids) != 2 {
		t.Fatalf("%d ranks on h1:\n%s", len(pids), &j.log)
	}
	at := time.Now()
	kill(t, pids[1], syscall.SIGKILL)
	j.end(t, false)
	within(t, c.settled(t, patience, "h0", "h1"), at, 10*time.Second)
	said := regexp.MustCompile(`ERR the rank died: killed from outside.* host=h1 pid=` +
		fmt.Sprint(pids[1]) + ` rank=[23]\n`)
	if n := len(said.FindAllString(j.log.String(), -1)); n != 1 {
		t.Errorf("%v comes %d times in\n%s", said, n, &j.log)
	}
	resumed := c.train(t, "h0:1,h1:1,h2:1", n, append(save, "--resume", "must")...)
	after := losses(t, resumed, n)
	if len(after) >= n-10 {
		t.Errorf("%d steps after the checkpoint of step 20 or later", len(after))
	}
	sameLosses(t, whole, after)
	c.settled(t, patience, "h0", "h1", "h2")
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	testkit.Must(t, syscall.Kill(pid, sig))
}

// slack is the time that a machine that is busy with other tests may add.
const slack = 20 * time.Second

func within(t *testing.T, ended, since time.Time, limit time.Duration) {
	t.Helper()
	took := ended.Sub(since)
	t.Logf("the last process ended after %.1f s", took.Seconds())
	if took > limit+slack {
		t.Errorf("%v after the fault, want %v", took, limit)
	}
}

// A rank on another host is stopped: the report says so, as another rank of its host has seen it.
func TestHostsStopped(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 2)
	c.write(t)
	// The start has as long, too, on a busy machine.
	j := c.begin(t, where("h0:2,h1:2"), "train", append(steps(c, 1000000), "--timeout", "20s")...)
	j.until(t, "INF step 1/")
	pid := c.pids(t, "h1", "train")[0]
	at := time.Now()
	kill(t, pid, syscall.SIGSTOP)
	j.end(t, false)
	within(t, c.settled(t, patience, "h0", "h1"), at, 25*time.Second)
	j.said(t, "--- this job hangs", "NOT ARRIVED: rank",
		fmt.Sprintf("(host h1, pid %d): does not answer; its process is T (stopped)", pid))
}

// noticed has Open MPI notice within 20 s that a host does not answer. Left alone it takes minutes.
var noticed = []string{"--mca", "oob_tcp_keepalive_time", "10", "--mca", "oob_tcp_keepalive_intvl", "3",
	"--mca", "oob_tcp_keepalive_probes", "3"}

// A cable is cut in mid-run: the job ends on all hosts, on both sides of the cut, and says which of
// them it was.
func TestHostsCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		cut     []string
		hosts   string
		options []string
		limit   time.Duration
		want    []string
	}{
		{"unplugged", []string{"unplug", "h1"}, "h0:2,h1:2", noticed, 25 * time.Second,
			[]string{"lost communication with a remote daemon", "on node h1"}},
		{"cut", []string{"cut", "h2"}, "h0:1,h1:1,h2:1", noticed, 25 * time.Second,
			[]string{"lost communication with a remote daemon", "on node h2"}},
		// mpirun reaches both.
		{"cut between two", []string{"part", "h1", "h2"}, "h0:1,h1:1,h2:2", noticed, 40 * time.Second,
			[]string{"ERR ranks 2-3 on h2 cannot be reached from rank 1 on h1: no acknowledgement for 30s", "host=h2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := startHosts(t, 3)
			c.write(t)
			j := c.begin(t, append(where(tc.hosts), tc.options...), "train",
				append(steps(c, 1000000), "--timeout", "2m")...)
			j.until(t, "INF step 1/")
			at := time.Now()
			c.must(t, tc.cut...)
			j.end(t, false)
			t.Logf("mpirun ended after %.1f s", time.Since(at).Seconds())
			within(t, c.settled(t, patience, "h0", "h1", "h2"), at, tc.limit)
			j.said(t, tc.want...)
		})
	}
}

// An interface leads nowhere, as Docker's does: Open MPI takes it and waits. The start then has a
// deadline. The option names the interface that leads somewhere, or the one that does not.
func TestHostsInterfaces(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, set, include, exclude string }{
		{"the same address on each host", "ip link add docker0 type bridge; ip address add 172.17.0.1/16 " +
			"dev docker0; ip link set docker0 up", "10.77.0.0/24", "127.0.0.0/8,docker0"},
		{"an address in the same network", "ip link add eth1 type bridge; ip address add 10.88.0.$K/24 " +
			"dev eth1; ip link set eth1 up", "eth0", "lo,eth1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := startHosts(t, 2)
			c.each(t, 2, tc.set)
			args := append(smallApplications["reduce"], "--device", "host")
			j := c.begin(t, where("h0:2,h1:2"), "reduce", append(args, "--timeout", "4s")...)
			j.end(t, false)
			j.said(t, "the start has not ended in 4s")
			c.settled(t, patience, "h0", "h1")
			for _, option := range [][]string{{"--mca", "btl_tcp_if_include", tc.include},
				{"--mca", "btl_tcp_if_exclude", tc.exclude}} {
				j := c.begin(t, append(where("h0:2,h1:2"), option...), "reduce", args...)
				j.end(t, true)
				j.said(t, "nodes=2 ", `mpi_tcp="eth0 (10.77.0.1)"`)
			}
		})
	}
	t.Run("IPv6 alone", func(t *testing.T) {
		t.Parallel()
		c := startHosts(t, 2)
		c.each(t, 2, "ip address flush dev eth0 scope global; ip address add fd77::$K/64 dev eth0 nodad")
		j := c.begin(t, where("h0:2,h1:2"), "reduce", append(smallApplications["reduce"], "--device", "host")...)
		j.end(t, true)
		j.said(t, "nodes=2 ", `mpi_tcp="eth0 (fd77::1)"`)
	})
}
