package doctor

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Reach is one try of a node to connect to another.
type Reach struct {
	Peer      int    `json:"peer"`      // node
	Interface string `json:"interface"` // of this node; "" if no two interfaces share a network
	From      string `json:"from"`      // addresses
	To        string `json:"to"`
	Err       string `json:"error,omitempty"`
}

// Endpoint is where a node waits for the others.
type Endpoint struct {
	Interface string `json:"interface"`
	Addr      string `json:"address"` // "10.0.0.1/24"
	Port      int    `json:"port"`
	Bridge    bool   `json:"bridge"`
}

// Address is where a node waits for the others, and a token by which they know that they have met
// it: an address such as docker0's exists on every node, and leads to oneself.
type Address struct {
	Machine   string     `json:"machine"` // as in Facts
	Endpoints []Endpoint `json:"endpoints"`
	Token     []byte     `json:"token"`
}

func (a *Address) proof(what string) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(what), a.Token...))
}

// Door is where this node waits.
type Door struct {
	Address
	lns []net.Listener
	wg  sync.WaitGroup
}

// Limits of one meeting.
const (
	dialLimit   = 3 * time.Second
	answerLimit = 2 * time.Second
)

// OpenDoor listens on a port of each address and answers those who know the token, until Close. It
// leaves out addresses that do not allow it.
func OpenDoor(interfaces []Interface) *Door {
	d := &Door{Address: Address{Machine: machine(), Token: make([]byte, 16)}}
	rand.Read(d.Token)
	for _, i := range interfaces {
		for _, a := range i.Addrs {
			ln, err := net.Listen("tcp", net.JoinHostPort(ipOf(a), "0"))
			if err != nil {
				continue
			}
			d.lns = append(d.lns, ln)
			d.Endpoints = append(d.Endpoints, Endpoint{i.Name, a, ln.Addr().(*net.TCPAddr).Port, i.Bridge})
		}
	}
	for _, ln := range d.lns {
		d.wg.Go(func() { d.serve(ln) })
	}
	return d
}

func (d *Door) serve(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		d.wg.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(answerLimit)) // what fails shows at the next call
			var got [sha256.Size]byte
			want, reply := d.proof("to"), d.proof("from")
			if _, err := io.ReadFull(conn, got[:]); err == nil && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
				_, _ = conn.Write(reply[:]) // the caller misses it
			}
		})
	}
}

// Close stops listening and waits for answers under way, for at most two seconds.
func (d *Door) Close() {
	for _, ln := range d.lns {
		ln.Close()
	}
	d.wg.Wait()
}

// MeetAll lets the node at mine connect to several peers, by their places, at the same time. Nodes
// that are the same machine, under two names, have nothing to find out. It takes at most five
// seconds.
func MeetAll(mine Address, places []Address, peers []int) []Reach {
	results := make([][]Reach, len(peers))
	var wg sync.WaitGroup
	for i, peer := range peers {
		if places[peer].Machine != mine.Machine {
			wg.Go(func() { results[i] = meetOne(mine.Endpoints, places[peer], peer) })
		}
	}
	wg.Wait()
	return slices.Concat(results...)
}

// meetOne connects from each of a node's endpoints to each of a peer's in the same network. If
// there is no such pair, it connects to each of the peer's that is not a bridge, by any route.
func meetOne(mine []Endpoint, theirs Address, peer int) []Reach {
	var tries []Reach
	var ports []int
	for _, a := range mine {
		for _, b := range theirs.Endpoints {
			if sameNetwork(a.Addr, b.Addr) {
				tries, ports = append(tries, Reach{Peer: peer, Interface: a.Interface, From: ipOf(a.Addr),
					To: ipOf(b.Addr)}), append(ports, b.Port)
			}
		}
	}
	if len(tries) == 0 {
		for _, b := range theirs.Endpoints {
			if !b.Bridge {
				tries, ports = append(tries, Reach{Peer: peer, To: ipOf(b.Addr)}), append(ports, b.Port)
			}
		}
	}
	if len(tries) == 0 {
		return []Reach{{Peer: peer, Err: "it has no address but the loopback's"}}
	}
	var wg sync.WaitGroup
	for i := range tries {
		t := &tries[i]
		wg.Go(func() {
			if t.From == t.To {
				t.Err = "both nodes have this address"
			} else if err := meet(t, ports[i], &theirs); err != nil {
				t.Err = err.Error()
			}
		})
	}
	wg.Wait()
	return tries
}

func meet(t *Reach, port int, theirs *Address) error {
	dialer := net.Dialer{Timeout: dialLimit}
	if t.From != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(t.From)}
	}
	conn, err := dialer.Dial("tcp", net.JoinHostPort(t.To, strconv.Itoa(port)))
	if err != nil {
		text := err.Error()
		return fmt.Errorf("%s", text[strings.LastIndex(text, ": ")+2:]) // the addresses are said already
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	ask, want := theirs.proof("to"), theirs.proof("from")
	var got [sha256.Size]byte
	if _, err := conn.Write(ask[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, got[:]); err != nil || got != want {
		return fmt.Errorf("another machine answers")
	}
	return nil
}

func ipOf(cidr string) string {
	h, _, _ := strings.Cut(cidr, "/")
	return h
}

func sameNetwork(a, b string) bool {
	ipA, netA, err1 := net.ParseCIDR(a)
	ipB, netB, err2 := net.ParseCIDR(b)
	return err1 == nil && err2 == nil && netA.Contains(ipB) && netB.Contains(ipA)
}

// Peers returns the nodes that node n connects to: all of a small job. In a large one they are at
// distances 1, 2, 4 ... onward, which uses every node's interfaces in both directions.
func Peers(n, nodes int) (peers []int) {
	const all = 16
	for d := 1; d < nodes; {
		peers = append(peers, (n+d)%nodes)
		if nodes > all {
			d *= 2
		} else {
			d++
		}
	}
	return peers
}
