package doctor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/launcher"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// twoHosts makes two network namespaces with a cable between them, eth0, and has mpirun in the
// first start ranks on both: each with a host name of its own.
func twoHosts(s *set) (ip func(host int, args ...string)) {
	needRoot(s.t, "ip", "unshare", "hostname")
	if out, err := exec.Command("mpirun", "--version").Output(); err != nil ||
		!strings.Contains(string(out), "Open MPI") {
		s.t.Skip("mpirun is not Open MPI's")
	}
	ns := [2]string{fmt.Sprintf("doctor%d-0", os.Getpid()), fmt.Sprintf("doctor%d-1", os.Getpid())}
	run := func(args ...string) {
		s.t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			s.t.Skipf("ip %v: %v\n%s", args, err, out)
		}
	}
	for _, n := range ns {
		run("netns", "add", n)
		s.t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", n).CombinedOutput(); err != nil {
				s.t.Errorf("ip netns del %s: %v\n%s", n, err, out)
			}
		})
	}
	ip = func(host int, args ...string) { run(append([]string{"-n", ns[host]}, args...)...) }
	run("link", "add", "eth0", "netns", ns[0], "type", "veth", "peer", "name", "eth0", "netns", ns[1])
	for h := range ns {
		ip(h, "link", "set", "lo", "up")
		ip(h, "addr", "add", fmt.Sprintf("10.77.0.%d/24", h+1), "dev", "eth0")
		ip(h, "link", "set", "eth0", "up")
	}
	s.write("agent", fmt.Sprintf("#!/bin/sh\nshift\nexec ip netns exec %s unshare -u sh -c \"hostname d1; $*\"\n",
		ns[1]))
	agent := filepath.Join(s.dir, "agent")
	s.env("OMPI_MCA_plm_rsh_agent="+agent, "PRTE_MCA_plm_ssh_agent="+agent)
	s.cmd.Args = slices.Insert(s.cmd.Args, 1, "--host", "d0:2,d1:2")
	s.prefix("ip", "netns", "exec", ns[0], "unshare", "-u", "sh", "-c", `hostname d0; exec "$@"`, "sh")
	return ip
}

// Each interface of two hosts but eth0 leads nowhere. One test at a time: they have the same names.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		args    []string
		prepare func(s *set, ip func(host int, args ...string))
		want    []want
	}{
		{"sound", nil, func(*set, func(int, ...string)) {}, nil},
		{"docker0 on both", nil, func(_ *set, ip func(int, ...string)) { docker(ip) },
			[]want{{Fail, []int{0, 1, 2, 3},
				[]string{"docker0 does not lead from d0 to d1", "both nodes have this address",
					"--mca btl_tcp_if_include eth0", "--prtemca prte_if_include eth0", "NCCL_SOCKET_IFNAME==eth0"}}}},
		{"docker0 on both, and left out", nil, func(s *set, ip func(int, ...string)) {
			docker(ip)
			s.env("OMPI_MCA_btl_tcp_if_include=10.77.0.0/24")
		}, nil},
		// MPI hangs in its first message here.
		{"eth1 is connected to nothing", []string{"--timeout", "30s"}, func(_ *set, ip func(int, ...string)) {
			for h := range 2 {
				ip(h, "link", "add", "eth1", "type", "veth", "peer", "name", "far")
				ip(h, "link", "set", "far", "up")
				ip(h, "addr", "add", fmt.Sprintf("10.78.0.%d/24", h+1), "dev", "eth1")
				ip(h, "link", "set", "eth1", "up")
			}
		}, []want{
			{Fail, []int{0, 1, 2, 3}, []string{"eth1 does not lead from d0 to d1",
				"10.78.0.1 to 10.78.0.2", "--mca btl_tcp_if_include eth0"}},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := examine(t, 4, "", tc.args, func(s *set) {
				tc.prepare(s, twoHosts(s))
			})
			e.check(t, 4, tc.want)
			nodes := []int{}
			for _, f := range e.results[0].Ranks {
				nodes = append(nodes, f.Node)
			}
			if !slices.Equal(nodes, []int{0, 0, 1, 1}) {
				t.Errorf("ranks on nodes %v", nodes)
			}
		})
	}
}

func docker(ip func(host int, args ...string)) {
	for h := range 2 {
		ip(h, "link", "add", "docker0", "type", "bridge")
		ip(h, "addr", "add", "172.17.0.1/16", "dev", "docker0")
		ip(h, "link", "set", "docker0", "up")
	}
}

// Every address of 127.0.0.0/8 is this machine's, so two doors on it are like two nodes in one
// network.
func TestMeet(t *testing.T) {
	one, two := []Interface{{Name: "eth0", Addrs: []string{"127.0.0.1/8"}}},
		[]Interface{{Name: "eth0", Addrs: []string{"127.0.0.2/8"}}}
	a, b := OpenDoor(one), OpenDoor(two)
	defer a.Close()
	defer b.Close()
	if got := MeetAll(a.Address, []Address{b.Address}, []int{0}); got != nil {
		t.Errorf("two nodes on one machine: %+v", got)
	}
	b.Machine = "another"
	stranger := b.Address
	stranger.Token = []byte("another")
	closed := OpenDoor(two)
	closed.Close()
	closed.Machine = "another"
	same := a.Address
	same.Machine = "another"
	far := b.Address
	far.Endpoints = []Endpoint{b.Endpoints[0]}
	far.Endpoints[0].Addr = "127.0.0.2/32" // not of a network shared with a
	bridge := far
	bridge.Endpoints = []Endpoint{far.Endpoints[0]}
	bridge.Endpoints[0].Bridge = true
	for _, tc := range []struct {
		name string
		peer Address
		want Reach
	}{
		{"met", b.Address, Reach{0, "eth0", "127.0.0.1", "127.0.0.2", ""}},
		{"another machine", stranger, Reach{0, "eth0", "127.0.0.1", "127.0.0.2", "another machine answers"}},
		{"nobody", closed.Address, Reach{0, "eth0", "127.0.0.1", "127.0.0.2", "connection refused"}},
		{"oneself", same, Reach{0, "eth0", "127.0.0.1", "127.0.0.1", "both nodes have this address"}},
		{"over a router", far, Reach{0, "", "", "127.0.0.2", ""}},
		{"no address", Address{Machine: "another"}, Reach{0, "", "", "", "it has no address but the loopback's"}},
		{"only a bridge", bridge, Reach{0, "", "", "", "it has no address but the loopback's"}},
	} {
		if got := MeetAll(a.Address, []Address{tc.peer}, []int{0}); len(got) != 1 || got[0] != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// A guest that says nothing does not keep a door from closing.
func TestDoorCloses(t *testing.T) {
	d := OpenDoor([]Interface{{Name: "lo", Addrs: []string{"127.0.0.1/8", "not an address"}}})
	if len(d.Endpoints) != 1 {
		t.Fatalf("%+v", d.Endpoints)
	}
	conn := dialDoor(t, d)
	defer conn.Close()
	done := make(chan struct{})
	go func() {
		d.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-mpirun.Patience(t).Done():
		t.Error("still open")
	}
}

func TestPeers(t *testing.T) {
	for _, n := range []int{1, 2, 3, 16, 17, 100} {
		for node := range n {
			peers := Peers(node, n)
			slices.Sort(peers)
			if slices.Contains(peers, node) || len(slices.Compact(peers)) != len(peers) ||
				slices.ContainsFunc(peers, func(p int) bool { return p < 0 || p >= n }) {
				t.Fatalf("node %d of %d connects to %v", node, n, peers)
			}
			if n <= 16 && len(peers) != n-1 || n > 16 && len(peers) > 10 {
				t.Fatalf("node %d of %d connects to %d", node, n, len(peers))
			}
		}
	}
}

// launch itself must run without libmpi, and without a double of it.
func TestLaunchLinksNoMPI(t *testing.T) {
	if f := describe(os.Args[0]); f.MPI != "" || f.Arch == "" {
		t.Errorf("%+v", f)
	}
	if f := describe(filepath.Join(build(t), "launch-probe")); launcher.Family(f.MPI) != "Open MPI" {
		t.Errorf("%+v", f)
	}
}

func TestUsage(t *testing.T) {
	ctx := mpirun.Patience(t)
	for _, args := range [][]string{{"--timeout", "0s"}, {"--timeout", "-1s"}} {
		cmd := exec.CommandContext(ctx, filepath.Join(build(t), "launch"), append([]string{"doctor"}, args...)...)
		cmd.Env = append(os.Environ(), launchEnv+"=1")
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("%v: %v, want status 2", args, err)
		}
	}
}

func dialDoor(t *testing.T, d *Door) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", d.Endpoints[0].Port), mpirun.Limit(t))
	testkit.Must(t, err)
	return conn
}
