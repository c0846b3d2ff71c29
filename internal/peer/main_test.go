package peer

import (
	"errors"
	"testing"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/devkernel"
	"lockstep/internal/devtest"
	"lockstep/internal/shm"
)

func TestMain(m *testing.M) {
	devtest.MoreSmall = func(t *testing.T) {
		message, room, atOnce, host, device := smallMessage, peerRoom, peersAtOnce, hostRings, deviceRings
		t.Cleanup(func() {
			smallMessage, peerRoom, peersAtOnce, hostRings, deviceRings = message, room, atOnce, host, device
		})
		smallMessage, peerRoom, peersAtOnce = 64, 4096, 64
		hostRings, deviceRings = ringShape{3 * 2048, 512, 256, 256}, ringShape{3 * 4096, 1024, 256, 512}
	}
	devtest.Main(m)
}

// ways are those of this package.
func ways() []devtest.Opener {
	opener := func(name string, path cudampi.Path, kernel bool) devtest.Opener {
		return devtest.Opener{Name: name, Open: func(t *testing.T, c *shm.Comm, d *cuda.Device) *cudampi.DeviceComm {
			compiler := devkernel.Compile
			if !kernel {
				devkernel.Compile = func(string, int) ([]byte, error) { return nil, errors.New("no compiler") }
			}
			defer func() { devkernel.Compile = compiler }()
			return devtest.OnPath(t, c, path, func(cfg cudampi.DeviceConfig) (*cudampi.DeviceComm, error) {
				k, n, err := open(c, d, cfg)
				nodes[k] = n
				if err == nil && c.Size() > 1 {
					checkNode(t, name, k, n, kernel)
				}
				return k, err
			})
		}}
	}
	return []devtest.Opener{opener("stage", cudampi.Staged, true), opener("copies", cudampi.Staged, false),
		opener("aware", cudampi.AwareMPI, true), opener("peer", cudampi.Peer, true)}
}

// nodes are what openers have opened.
var nodes = map[*cudampi.DeviceComm]*node{}

// checkNode fails the test unless the node has what its way needs, and nothing else.
func checkNode(t *testing.T, name string, k *cudampi.DeviceComm, n *node, kernel bool) {
	t.Helper()
	peer := k.Path() == cudampi.Peer
	if (n.peers != nil) != peer || (n.stage != nil) == peer {
		t.Fatalf("%s: peers: %v, a stage: %v (%s)", name, n.peers != nil, n.stage != nil, k.Reason())
	}
	if got, want := n.small != nil, kernel && !peer; got != want && !devtest.OnGPU() {
		t.Fatalf("%s: small all-reduces have a kernel: %v (%s)", name, got, k.Reason())
	}
	if got, want := n.rings != nil, k.Path() != cudampi.AwareMPI; got != want {
		t.Fatalf("%s: messages have rings: %v (%s)", name, got, k.Reason())
	}
}

// nodeOf is what a way has been opened with; nothing for one rank.
func nodeOf(w devtest.Way) *node {
	if n := nodes[w.DeviceComm]; n != nil {
		return n
	}
	return &node{}
}

func everyWay(t *testing.T, c *shm.Comm, d *cuda.Device, fn func(t *testing.T, w devtest.Way)) {
	t.Helper()
	devtest.EveryWay(t, c, d, ways(), fn)
}

// on is a way to use k.
func on(t *testing.T, name string, c *shm.Comm, d *cuda.Device, k *cudampi.DeviceComm) devtest.Way {
	t.Helper()
	return devtest.Way{Name: name, DeviceComm: k, C: c, Dev: d, S: devtest.Must1(d.NewStream(0))(t)}
}

func TestCollectives(t *testing.T) { devtest.Collectives(t, ways()...) }
func TestMismatch(t *testing.T)    { devtest.Mismatch(t, ways()...) }
func TestGraph(t *testing.T)       { devtest.Graph(t, ways()...) }
func TestOrder(t *testing.T)       { devtest.Order(t, ways()...) }
func TestStreams(t *testing.T)     { devtest.Streams(t, ways()...) }
func TestRelease(t *testing.T)     { devtest.Release(t, ways()...) }
