package doctor

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// network looks for interfaces that lead nowhere: a library that takes one waits for ever.
func (j *judge) network() {
	type link struct { // an interface that failed between some nodes
		pairs             int
		nodes             map[int]int // failing pairs of each node
		from, to, example string      // of the first
	}
	links := map[string]*link{} // by interface
	var order []string
	good := map[string]bool{}
	apart := map[[2]int]bool{} // nodes that do not meet at all
	for _, of := range j.nodes {
		if len(of) == 0 {
			continue
		}
		f := &j.facts[of[0]]
		reached := map[int]bool{}
		for _, r := range f.Reach {
			reached[r.Peer] = reached[r.Peer] || r.Err == ""
		}
		for _, r := range f.Reach {
			if r.Err == "" {
				good[r.Interface] = true
				continue
			}
			if pair := [2]int{min(f.Node, r.Peer), max(f.Node, r.Peer)}; !reached[r.Peer] {
				if !apart[pair] {
					apart[pair] = true
					both := j.those(func(o *Facts) bool { return o.Node == pair[0] || o.Node == pair[1] })
					j.add(Fail, both, fmt.Sprintf("%s reaches %s over no interface: %s", f.Host,
						j.facts[j.nodes[r.Peer][0]].Host, say(r)),
						"open the ports from 1024 on between the nodes, or connect them to one network (see ip addr)")
				}
				continue
			}
			if !f.uses(r.Interface, r.From) {
				continue
			}
			l := links[r.Interface]
			if l == nil {
				l = &link{nodes: map[int]int{}, from: f.Host, to: j.facts[j.nodes[r.Peer][0]].Host, example: say(r)}
				links[r.Interface], order = l, append(order, r.Interface)
			}
			l.pairs++
			l.nodes[f.Node]++
			l.nodes[r.Peer]++
		}
	}
	var working []string
	for name := range good {
		if links[name] == nil && name != "" {
			working = append(working, name)
		}
	}
	slices.Sort(working)
	for _, name := range order {
		l := links[name]
		// A node that takes part in every failure is the one to look at.
		culprit := -1
		for node, n := range l.nodes {
			if n == l.pairs && l.pairs > 2 {
				culprit = node
			}
		}
		of := j.those(func(f *Facts) bool { return culprit < 0 && l.nodes[f.Node] > 0 || culprit == f.Node })
		j.add(Fail, of, fmt.Sprintf("%s does not lead from %s to %s: %s", name, l.from, l.to, l.example),
			avoid(name, working))
	}
	j.networks()
}

func say(r Reach) string {
	if r.To == "" {
		return r.Err
	}
	if r.From == "" {
		return fmt.Sprintf("to %s: %s", r.To, r.Err)
	}
	return fmt.Sprintf("%s to %s: %s", r.From, r.To, r.Err)
}

// avoid says how to keep MPI and NCCL off an interface. Naming those that work is safer than
// excluding: Open MPI 5.0.3 refuses an exclusion on mpirun's command line.
func avoid(name string, working []string) string {
	if len(working) > 0 {
		w := strings.Join(working, ",")
		return fmt.Sprintf("Open MPI 4: mpirun --mca btl_tcp_if_include %s --mca oob_tcp_if_include %s; "+
			"5: --mca btl_tcp_if_include %s --prtemca prte_if_include %s; NCCL: -x NCCL_SOCKET_IFNAME==%s",
			w, w, w, w, w)
	}
	return fmt.Sprintf("Open MPI 4: mpirun --mca btl_tcp_if_exclude lo,%s --mca oob_tcp_if_exclude "+
		"lo,%s; 5: OMPI_MCA_btl_tcp_if_exclude=lo,%s --prtemca prte_if_exclude lo,%s; NCCL: -x "+
		"NCCL_SOCKET_IFNAME=^lo,%s", name, name, name, name, name)
}

// uses reports whether MPI, or with GPUs NCCL, takes an interface by the environment. (Files of
// settings that mpirun reads do not show.)
func (f *Facts) uses(name, addr string) bool {
	mpi := true
	if v := f.setting("OMPI_MCA_btl_tcp_if_include"); v != "" {
		mpi = listed(v, name, addr)
	} else if v := f.setting("OMPI_MCA_btl_tcp_if_exclude"); v != "" {
		mpi = !listed(v, name, addr)
	}
	return mpi || len(f.GPU.Devices) > 0 && ncclUses(f.setting("NCCL_SOCKET_IFNAME"), name)
}

// listed reports whether an interface is in a list of names and networks.
func listed(list, name, addr string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(e string) bool {
		_, network, err := net.ParseCIDR(e)
		return e == name || err == nil && network.Contains(net.ParseIP(addr))
	})
}

// ncclUses follows NCCL_SOCKET_IFNAME: names are beginnings, "=" makes them whole and "^" excludes
// them. Source: NCCL's user guide, environment variables.
func ncclUses(setting, name string) bool {
	if setting == "" {
		setting = "^docker,lo"
	}
	list, exclude := strings.CutPrefix(setting, "^")
	list, whole := strings.CutPrefix(list, "=")
	found := slices.ContainsFunc(strings.Split(list, ","), func(e string) bool {
		e, _, _ = strings.Cut(e, ":") // a port of an RDMA adapter
		return e == name || !whole && strings.HasPrefix(name, e)
	})
	return found != exclude
}

// networks looks for nodes without an interface in a network that most have: its link may be down.
func (j *judge) networks() {
	type network struct{ name, of string }
	var order []network
	on := map[network]map[int]bool{}
	for _, of := range j.nodes {
		if len(of) == 0 {
			continue
		}
		for _, i := range j.facts[of[0]].Interfaces {
			for _, a := range i.Addrs {
				_, n, err := net.ParseCIDR(a)
				if err != nil || i.Bridge || !j.facts[of[0]].uses(i.Name, ipOf(a)) {
					continue
				}
				k := network{n.String(), i.Name}
				if on[k] == nil {
					on[k], order = map[int]bool{}, append(order, k)
				}
				on[k][j.facts[of[0]].Node] = true
			}
		}
	}
	for _, k := range order {
		if 2*len(on[k]) <= len(j.nodes) || len(on[k]) < 2 {
			continue
		}
		missing := j.those(func(f *Facts) bool { return !on[k][f.Node] })
		j.add(Warn, missing, fmt.Sprintf("no interface in %s, which most nodes have as %s", k.name, k.of),
			fmt.Sprintf("ip link set %s up; or mpirun --mca btl_tcp_if_exclude lo,%s", k.of, k.of))
	}
}
