package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lockstep/internal/testkit"
)

// job returns the facts of a sound job: so many nodes of so many ranks, as Gather and launch-probe
// find them.
func job(nodes, perNode int) []Facts {
	facts := make([]Facts, nodes*perNode)
	for r := range facts {
		node := r / perNode
		facts[r] = Facts{
			Host: fmt.Sprintf("n%d", node), Arch: "amd64", Node: node, LocalRank: r % perNode,
			Launcher: Launcher{Name: "openmpi4", Rank: r, Size: len(facts), Source: "OMPI_COMM_WORLD_SIZE"},
			Launch:   File{Path: "/opt/launch", SHA256: "0123456789abcdef", Arch: "amd64", Exec: true},
			MPI:      &MPI{Version: "Open MPI 4.1.4", Rank: r, Size: len(facts)},
			Libraries: map[string]Library{
				"OpenBLAS": {Version: "0.3.21 SkylakeX"},
			},
			Cores: []int{r % perNode}, NodeCores: perNode, ShmFree: 1 << 30, Temp: Temp{"/tmp", 1 << 30, ""},
			FileLimit: -1, Memlock: -1, NoFile: 65536, Stack: 8 << 20,
			Interfaces: []Interface{{Name: "eth0", Addrs: []string{fmt.Sprintf("10.0.0.%d/24", node+1)}}},
		}
		if r%perNode == 0 {
			for _, p := range Peers(node, nodes) {
				facts[r].Reach = append(facts[r].Reach,
					Reach{p, "eth0", fmt.Sprintf("10.0.0.%d", node+1), fmt.Sprintf("10.0.0.%d", p+1), ""})
			}
		}
	}
	return facts
}

func skew(d time.Duration) *time.Duration { return &d }

// gpuJob is job with GPUs, one for each rank of a node, all seen by all.
func gpuJob(nodes, perNode int) []Facts {
	facts := job(nodes, perNode)
	for r := range facts {
		f := &facts[r]
		for g := range perNode {
			f.GPU.Devices = append(f.GPU.Devices,
				Device{Name: "NVIDIA H200", UUID: fmt.Sprintf("GPU-%d-%d", f.Node, g), NVLinks: 18})
		}
		f.GPU.Driver, f.GPU.CUDA, f.GPU.Peers = "580.1", "13.0", "all"
		for _, lib := range []string{"NCCL", "NVRTC", "cuBLAS", "cuBLASLt"} {
			f.Libraries[lib] = Library{Version: "1.2"}
		}
	}
	return facts
}

// onNode changes the facts of the ranks of a node.
func onNode(facts []Facts, node int, change func(f *Facts)) {
	for i := range facts {
		if facts[i].Node == node {
			change(&facts[i])
		}
	}
}

// Broken set-ups of several machines, which TestBrokenSetups cannot make of one. Each has the named
// findings and no other.
func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name   string
		facts  []Facts
		change func(all []Facts)
		want   []want
	}{
		{"sound", job(4, 4), func([]Facts) {}, nil},
		{"sound, with GPUs", gpuJob(2, 4), func([]Facts) {}, nil},
		{"sound, alone", job(1, 1), func([]Facts) {}, nil},
		{"mixed architectures", job(3, 2), func(all []Facts) {
			onNode(all, 2, func(f *Facts) { f.Arch, f.Launch.SHA256 = "arm64", "fedcba9876543210" })
		}, []want{{Fail, []int{4, 5}, []string{"ranks 4-5 on n2", "arm64 here and amd64 elsewhere"}}}},
		{"another MPI on a node", job(3, 1), func(all []Facts) {
			onNode(all, 0, func(f *Facts) { f.MPI.Version = "Open MPI 4.1.6" })
		}, []want{{Fail, []int{0}, []string{"rank 0 on n0", "Open MPI 4.1.6 here and Open MPI 4.1.4 elsewhere"}}}},
		{"srun without PMIx", job(1, 1), func(all []Facts) {
			all[0].Launcher = Launcher{Name: "slurm", Size: 8, Source: "SLURM_STEP_NUM_TASKS"}
		}, []want{{Fail, []int{0, 1, 2, 3, 4, 5, 6, 7},
			[]string{"8 worlds of one", "srun --mpi=pmix", "mpirun launch doctor"}}}},
		{"torchrun", job(1, 1), func(all []Facts) {
			all[0].Launcher = Launcher{Name: "torchrun", Size: 2, Source: "WORLD_SIZE"}
		}, []want{{Fail, []int{0, 1}, []string{"2 worlds of one", "mpirun -np 2"}}}},
		{"a slow clock and a fast one", job(3, 2), func(all []Facts) {
			onNode(all, 1, func(f *Facts) { f.Skew = skew(-3 * time.Second) })
			onNode(all, 2, func(f *Facts) { f.Skew = skew(200 * time.Millisecond) })
		}, []want{
			{Warn, []int{2, 3}, []string{"3s behind rank 0's", "chrony"}},
			{Warn, []int{4, 5}, []string{"200ms ahead of rank 0's"}},
		}},
		{"RDMA with little memory to lock", job(2, 2), func(all []Facts) {
			onNode(all, 1, func(f *Facts) { f.RDMA, f.Memlock = []string{"mlx5_0"}, 64<<10 })
		}, []want{{Fail, []int{2, 3}, []string{"64 KiB", "mlx5_0", "LimitMEMLOCK=infinity"}}}},
		{"no /dev/shm", job(1, 2), func(all []Facts) { all[1].ShmFree = -1 },
			[]want{{Fail, []int{0, 1}, []string{"no /dev/shm", "mount"}}}},
		{"a container for each rank", job(1, 2),
			func(all []Facts) { all[0].Apart.Process, all[1].Apart.Process = true, true },
			[]want{{Warn, []int{0, 1}, []string{"process namespace", "one container"}}}},
		{"a long host name", job(1, 1), func(all []Facts) { all[0].Host = strings.Repeat("n", 60) },
			[]want{{Fail, []int{0}, []string{"60 characters", "mpirun crashes"}}}},
		{"a full TMPDIR", job(2, 2), func(all []Facts) {
			onNode(all, 1, func(f *Facts) { f.Temp = Temp{"/scratch", 1 << 20, ""} })
		},
			[]want{{Fail, []int{2, 3}, []string{"TMPDIR: /scratch has 1.0 MiB free", "needs 9", "another folder"}}}},
		{"a TMPDIR for others", job(1, 2), func(all []Facts) {
			all[1].Temp = Temp{"/scratch", 1 << 30, "permission denied"}
		},
			[]want{{Fail, []int{1}, []string{"cannot write to /scratch (permission denied)"}}}},
		{"a limit on files", job(1, 2), func(all []Facts) { all[0].FileLimit, all[1].FileLimit = 100<<10, 100<<10 },
			[]want{{Fail, []int{0, 1}, []string{"files may have 100 KiB", "ulimit -f unlimited"}}}},
		{"docker's /dev/shm with GPUs", gpuJob(1, 8), func(all []Facts) {
			onNode(all, 0, func(f *Facts) { f.ShmFree = 64 << 20 })
		}, []want{{Fail, []int{0, 1, 2, 3, 4, 5, 6, 7}, []string{"64 MiB free", "8 ranks need 256 MiB"}}}},
		{"one node is cut off on an interface", withEth1(4), func(all []Facts) {
			cut(all, 2, "eth1", "connection timed out")
		}, []want{{Fail, []int{2}, []string{"rank 2 on n2", "eth1 does not lead from",
			"connection timed out", "if_include eth0"}}}},
		{"the same, with the interface left out", withEth1(4), func(all []Facts) {
			cut(all, 2, "eth1", "connection timed out")
			for i := range all {
				all[i].Settings = []string{"OMPI_MCA_btl_tcp_if_exclude=lo,eth1"}
			}
		}, nil},
		{"left out for MPI, and taken by NCCL", withEth1(4), func(all []Facts) {
			cut(all, 2, "eth1", "connection timed out")
			for i := range all {
				all[i].Settings = []string{"OMPI_MCA_btl_tcp_if_include=10.0.0.0/24"}
				all[i].GPU.Devices = []Device{{UUID: fmt.Sprint(i)}}
			}
		}, []want{{Fail, []int{2}, []string{"eth1 does not lead"}}}},
		{"two nodes do not meet at all", job(2, 2), func(all []Facts) {
			cut(all, 1, "eth0", "connection refused")
		}, []want{
			{Fail, []int{0, 1, 2, 3}, []string{"n0 reaches n1 over no interface",
				"10.0.0.1 to 10.0.0.2: connection refused"}},
		}},
		{"a link is down on one node of four", withEth1(4), func(all []Facts) {
			all[3].Interfaces = all[3].Interfaces[:1]
		}, []want{{Warn, []int{3}, []string{"no interface in 10.1.0.0/24", "most nodes have as eth1",
			"ip link set eth1 up"}}}},
		{"half of the nodes have another network", withEth1(4), func(all []Facts) {
			all[2].Interfaces, all[3].Interfaces = all[2].Interfaces[:1], all[3].Interfaces[:1]
		}, nil},
		{"bound to no core", job(2, 3), func(all []Facts) {
			for i := range all {
				all[i].Cores = []int{0, 1, 2}
			}
		}, nil},
		{"bound to a core each of many", job(2, 2), func(all []Facts) {
			onNode(all, 1, func(f *Facts) { f.NodeCores = 64 })
		}, []want{{Warn, []int{2, 3}, []string{"bound to one core each, of 64", "slot:PE=32"}}}},
		{"three ranks share two of eight cores", job(1, 3), func(all []Facts) {
			for i := range all {
				all[i].Cores, all[i].NodeCores = []int{i % 2, 2}, 8
			}
		}, []want{{Warn, []int{0, 1, 2}, []string{"3 ranks share 2 of 8 cores"}}}},
		{"another GPU and driver on a node", gpuJob(3, 2), func(all []Facts) {
			onNode(all, 1, func(f *Facts) {
				f.GPU.Driver = "535.2"
				for i := range f.GPU.Devices {
					f.GPU.Devices[i].Name = "NVIDIA A100"
				}
			})
		}, []want{
			{Warn, []int{2, 3}, []string{"driver is 535.2 here and 580.1 elsewhere"}},
			{Warn, []int{2, 3}, []string{"NVIDIA A100 here and NVIDIA H200 elsewhere"}},
		}},
		{"the driver of a node does not work", gpuJob(2, 2), func(all []Facts) {
			onNode(all, 1, func(f *Facts) { f.GPU = GPU{Err: "cuInit: 999", Broken: true} })
		}, []want{{Fail, []int{2, 3}, []string{"cuInit: 999", "nvidia-driver"}}}},
		{"the card is hidden from a rank", gpuJob(1, 2), func(all []Facts) {
			all[1].GPU = GPU{Err: "no GPU is visible"}
			all[1].Settings = []string{"CUDA_VISIBLE_DEVICES="}
		}, []want{{Fail, []int{1}, []string{`CUDA_VISIBLE_DEVICES=""`, "unset"}}}},
		{"another NVRTC on a node", gpuJob(2, 1), func(all []Facts) {
			all[1].Libraries["NVRTC"] = Library{Version: "12.4"}
		}, []want{{Warn, []int{1}, []string{"NVRTC is 12.4 here and 1.2 elsewhere"}}}},
		{"a setting that is another on each rank", job(1, 6), func(all []Facts) {
			for i := range all {
				all[i].Settings = []string{fmt.Sprintf("UCX_TLS=%d", i)}
			}
		}, []want{{Warn, []int{1, 2, 3, 4, 5}, []string{`UCX_TLS has 6 values, such as "0" and "1"`}}}},
		{"one GPU needs no NCCL", gpuJob(1, 1), func(all []Facts) {
			all[0].Libraries["NCCL"] = Library{Err: "not to be found"}
		}, nil},
		{"MPICH's mpirun and a program of Open MPI", job(1, 2), func(all []Facts) {
			for i := range all {
				all[i].Launcher.Name = "mpich"
				all[i].Program = &File{Path: "/p", SHA256: "0", Arch: "amd64", MPI: "libmpi.so.40", Exec: true}
			}
		}, []want{{Fail, []int{0, 1}, []string{"libmpi.so.40 (Open MPI)", "mpirun.openmpi"}}}},
	} {
		tc.change(tc.facts)
		findings := Judge(tc.facts)
		if len(findings) != len(tc.want) {
			t.Errorf("%s: %d findings: %v", tc.name, len(findings), findings)
		}
		for _, w := range tc.want {
			if !w.among(findings) {
				t.Errorf("%s: no %s of ranks %v with %q: %v", tc.name, w.level, w.ranks, w.words, findings)
			}
		}
		if !slices.IsSortedFunc(findings, func(a, b Finding) int { return strings.Compare(a.Level, b.Level) }) {
			t.Errorf("%s: failures do not come first: %v", tc.name, findings)
		}
	}
}

// withEth1 gives a job of one rank on each node a second network.
func withEth1(nodes int) []Facts {
	facts := job(nodes, 1)
	for i := range facts {
		f := &facts[i]
		f.Interfaces = append(f.Interfaces, Interface{Name: "eth1", Addrs: []string{fmt.Sprintf("10.1.0.%d/24", i+1)}})
		for _, p := range Peers(i, nodes) {
			f.Reach = append(f.Reach, Reach{p, "eth1", fmt.Sprintf("10.1.0.%d", i+1),
				fmt.Sprintf("10.1.0.%d", p+1), ""})
		}
	}
	return facts
}

// cut lets all connections of a node over an interface fail.
func cut(facts []Facts, node int, name, why string) {
	for i := range facts {
		for k := range facts[i].Reach {
			if r := &facts[i].Reach[k]; r.Interface == name && (facts[i].Node == node || r.Peer == node) {
				r.Err = why
			}
		}
	}
}

func TestNCCLInterfaces(t *testing.T) {
	for _, tc := range []struct {
		setting, name string
		want          bool
	}{
		{"", "eth0", true}, {"", "docker0", false}, {"eth", "eth1", true}, {"eth", "ib0", false},
		{"=eth", "eth1", false},
		{"=eth1,ib0", "ib0", true}, {"^eth", "eth1", false}, {"^eth", "ib0", true}, {"^=eth1", "eth10", true},
	} {
		if got := ncclUses(tc.setting, tc.name); got != tc.want {
			t.Errorf("NCCL_SOCKET_IFNAME=%q, %s: %v", tc.setting, tc.name, got)
		}
	}
}

func TestWrite(t *testing.T) {
	for _, width := range []int{80, 100, 120} {
		facts := gpuJob(2, 4)
		for i := range facts {
			facts[i].Settings = []string{"NCCL_DEBUG=INFO", fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d", i%4)}
			facts[i].Program = &File{Path: "/home/someone/with a long path/bin/train", Err: "no such file or directory"}
		}
		r := Result{Ranks: facts, Findings: Judge(facts)}
		var b bytes.Buffer
		testkit.Must(t, r.Write(&b, width))
		text := b.String()
		above, table, _ := strings.Cut(text, "\nrank  ")
		for _, want := range []string{"launcher   openmpi4 (OMPI_COMM_WORLD_SIZE=8)\n",
			"NCCL_DEBUG INFO\n", "driver     580.1 CUDA 13.0\n", "18 NVLinks, peer access: all"} {
			if strings.Count(above, want) != 1 {
				t.Errorf("%q is not once above the table:\n%s", want, text)
			}
		}
		for _, want := range []string{"host", "takes", "CUDA_VISIBLE_DEVICES", "\n3 ", "\n7 "} {
			if !strings.Contains(table, want) || strings.Contains(above, want) {
				t.Errorf("%q is not in the table:\n%s", want, text)
			}
		}
		page, findings, _ := strings.Cut(text, "\nFAIL ")
		for line := range strings.Lines(page) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d characters, of %d: %s", n, width, line)
			}
		}
		if !strings.HasPrefix(findings, "all ranks: /home/") ||
			!strings.HasSuffix(findings, "\n1 failure, 0 warnings\n") || strings.Count(findings, "\n") != 2 {
			t.Errorf("findings:\n%s", findings)
		}
		var again Result
		b.Reset()
		if err := r.WriteJSON(&b); err != nil || json.Unmarshal(b.Bytes(), &again) != nil ||
			bytes.Count(b.Bytes(), []byte("\n")) != 1 {
			t.Fatalf("%v: %s", err, &b)
		}
		if len(again.Ranks) != 8 || again.Ranks[5].GPU.Devices[1] != facts[5].GPU.Devices[1] ||
			len(again.Findings) != 1 || r.Status() != 1 {
			t.Errorf("read again: %+v", again)
		}
	}
}
