package cuda

import "unsafe"

// Graph is work that was captured. It holds the addresses and arguments of then.
type Graph struct {
	d *Device
	h unsafe.Pointer
}

// Instantiate makes g ready to run; g may be closed afterwards. Source: cuda.h,
// cuGraphInstantiateWithFlags.
func (g *Graph) Instantiate() (*Exec, error) {
	h, status := sysGraphInstantiate(g)
	if status != 0 {
		return nil, check("cuGraphInstantiate", status)
	}
	return &Exec{d: g.d, h: h}, nil
}

// Nodes returns the number of nodes. Source: cuda.h, cuGraphGetNodes.
func (g *Graph) Nodes() (int, error) {
	n, status := sysGraphNodes(g)
	return n, check("cuGraphGetNodes", status)
}

// Node is a node of a graph, as the driver knows it.
type Node uintptr

// CaptureEnds puts into ends the nodes that the next command on s depends on, while s is captured,
// and returns their number. It refuses more than ends has room for. Source: cuda.h,
// cuStreamGetCaptureInfo.
func (s *Stream) CaptureEnds(ends []Node) (int, error) {
	n, status := sysCaptureEnds(s, ends)
	return n, check("cuStreamGetCaptureInfo", status)
}

// Followers puts into list the nodes of g that wait for one of its nodes, and returns their number.
// It refuses more than list has room for, and more than 256. For node 0 it gives the nodes that
// wait for none. Source: cuda.h, cuGraphNodeGetDependentNodes, cuGraphGetRootNodes.
func (g *Graph) Followers(of Node, list []Node) (int, error) {
	n, status := sysGraphFollowers(g, of, list)
	return n, check("cuGraphNodeGetDependentNodes", status)
}

// Records adds a node to g that waits for some nodes of g; other nodes also wait for it. It records
// e when a run of g has come there. The driver runs a node that none waits for late, so such a
// record says little. Source: cuda.h, cuGraphAddEventRecordNode, cuGraphAddDependencies.
func (g *Graph) Records(e *Event, after, before []Node) error {
	return check("cuGraphAddEventRecordNode", sysGraphAddRecord(g, after, before, e))
}

// Close destroys g. A second Close does nothing. Source: cuda.h, cuGraphDestroy.
func (g *Graph) Close() error {
	if g.h == nil {
		return nil
	}
	status := sysGraphDestroy(g)
	g.h = nil
	return check("cuGraphDestroy", status)
}

// Exec is a graph that runs.
type Exec struct {
	d *Device
	h unsafe.Pointer
}

// Launch enqueues the whole graph on s. Runs of one Exec follow each other. Source: cuda.h,
// cuGraphLaunch.
func (x *Exec) Launch(s *Stream) error {
	return check("cuGraphLaunch", sysGraphLaunch(x, s))
}

// Close destroys x; runs that are enqueued still finish. A second Close does nothing.
// Source: cuda.h, cuGraphExecDestroy.
func (x *Exec) Close() error {
	if x.h == nil {
		return nil
	}
	status := sysExecDestroy(x)
	x.h = nil
	return check("cuGraphExecDestroy", status)
}
