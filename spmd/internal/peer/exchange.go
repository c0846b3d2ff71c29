package peer

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

var (
	exchangeBlocks = 512     // about the most blocks of a kernel of messages; tests lower it
	messagesMost   = 2 << 20 // bytes of a message with stamps to each of one rank; tests lower it
)

// Message is a message of device memory to or from a rank.
type Message struct {
	Buf  unsafe.Pointer
	N    int // elements
	Type elem.Type
	Peer int
	Recv bool // from Peer into Buf; else to Peer from Buf
}

// MessageMost returns the most bytes of a message that is faster here than by NCCL: 2 MiB for 2
// ranks, and 2 MiB / (p - 1) for p, in whole 2 KiB. Longer ones are not, since stamps halve the
// bandwidth.
func (p *Clique) MessageMost() int {
	return messagesMost / max(1, p.c.Size()-1) / smallBlock * smallBlock
}

// The constants of peers.cu.
const (
	messageQueues = 256
	messageWords  = 2        // of struct Message
	messageBits   = 40       // of the bytes of a message
	bulkMost      = 32 << 10 // of a chunk of a long message
	// a flag, the low words of the bytes that came and of those that were
	// to come, and their high ones
	wrongBytes = 4 * 4
)

// lanesBytes returns the memory of a rank for messages from and to all ranks (peers.cu): for each
// queue of each rank three counts, and two places, in all 2 MiB for each rank.
func lanesBytes(ranks int) int {
	const placeBytes = 2*16 + 2*smallBlock
	return ranks * messageQueues * (3*4 + 2*placeBytes)
}

// ListBytes returns the device memory that Exchange needs for n messages, 0 for few.
func ListBytes(n int) int {
	if n <= fewMessages {
		return 0
	}
	return 8 * messageWords * n
}

// Exchange enqueues on s several messages. They start together, so no order among them can
// deadlock. Messages from one rank to another match in their order, whatever calls they are in. A
// rank may also send to itself.
//
// A message is sent when the kernel before it on s is over, also when nobody has asked for it yet.
// Two messages to a rank, or 1 MiB, may be on their way like that. Later messages wait until the
// first is received and the next is asked for. So do messages of more than MessageMost, which the
// scratch memory carries.
//
// list is device memory of ListBytes of the number of messages, nil for few. It must remain until
// the messages have been exchanged, and as long as a graph that holds them. If Recv has another
// length than the message, the kernel waits for ever, and Failure says why.
func (p *Clique) Exchange(s *cuda.Stream, list unsafe.Pointer, messages []Message) error {
	// Lanes that send have the lowest numbers, which blocks that wait for others
	// must not keep off the device.
	var lanes [2][peerRanks]uint8
	used, most := 0, 0
	for dir, recv := range [...]bool{false, true} {
		for i := range messages {
			m := &messages[i]
			bytes := m.N * m.Type.Size()
			if m.Recv != recv {
				continue
			}
			if bytes>>messageBits != 0 || uint(m.Peer) >= uint(p.c.Size()) {
				return fmt.Errorf("peer: message of %d bytes with rank %d of %d", bytes, m.Peer, p.c.Size())
			}
			most = max(most, bytes)
			if lanes[dir][m.Peer] == 0 {
				used++
				lanes[dir][m.Peer] = uint8(used)
			}
		}
	}
	if used == 0 {
		return nil
	}
	put := func(at []uint64, messages []Message) {
		for i := range messages {
			m := &messages[i]
			recv := uint64(0)
			if m.Recv {
				recv = 1
			}
			at[messageWords*i] = uint64(ccall.Address(m.Buf))
			at[messageWords*i+1] = uint64(m.N*m.Type.Size()) | uint64(lanes[recv][m.Peer]-1)<<messageBits |
				uint64(m.Peer)<<48 | recv<<56
		}
	}
	per := messageQueues // blocks of a lane: they divide the queues among them
	for per > 1 && (per/2*smallBlock >= most || per*used > exchangeBlocks) {
		per /= 2
	}
	each, stamped := p.bulk()
	args := [11 + messageWords*fewMessages]uint64{p.table(), uint64(p.lanes()), uint64(ccall.Address(p.wrong)),
		uint64(p.c.Rank()), uint64(p.c.Size()), uint64(per), uint64(len(messages)), 0, uint64(p.scratch()),
		uint64(each), uint64(stamped)}
	if len(messages) <= fewMessages {
		put(args[11:], messages)
	} else {
		args[7] = uint64(ccall.Address(list))
		for lo := 0; lo < len(messages); lo += manyMessages {
			part := messages[lo:min(lo+manyMessages, len(messages))]
			many := [2 + messageWords*manyMessages]uint64{uint64(ccall.Address(list)) + uint64(8*messageWords*lo),
				uint64(len(part))}
			put(many[2:], part)
			if err := s.Launch(p.k.listMessages, [3]int{1, 1, 1}, [3]int{listThreads, 1, 1}, 0, many[:]); err != nil {
				return err
			}
		}
	}
	return s.LaunchEarly(p.k.exchange, [3]int{used * per, 1, 1}, [3]int{smallThreads, 1, 1}, 0, args[:])
}

// bulk returns the bytes of a chunk of a long message, and the most bytes of a message that is not
// long. Chunks have two places in the scratch memory for each rank and queue. If there is little
// memory, no message is long.
func (p *Clique) bulk() (each, most int) {
	each = min(p.room/p.c.Size()/messageQueues/smallBlock*smallBlock, bulkMost)
	if each == 0 {
		return 0, 1 << messageBits
	}
	return each, p.MessageMost()
}

// exchangeParts does a transfer as messages. All ranks know the lengths of all of them.
func (p *Clique) exchangeParts(x *Transfer, s *cuda.Stream) error {
	x.window = max(x.N, 1) // one step
	var room [2 * peerRanks]Message
	messages := room[:0]
	ownDst, ownSrc, _ := x.own()
	own := ownDst != ownSrc
	if x.N*x.Type.Size() > p.AtOnce(x.What) { // a copy is faster
		if err := x.keep(s); err != nil {
			return err
		}
		own = false
	}
	add := func(i piece, m Message) {
		if i.N > 0 && (m.Peer != x.rank || own) {
			m.Buf, m.N, m.Type = i.At, i.N, x.Type
			messages = append(messages, m)
		}
	}
	for _, o := range x.out(0) {
		for r := range x.size {
			if (!x.isSplit() || r == o.Slot) && (x.What != Gather || r == x.Root) {
				add(o, Message{Peer: r})
			}
		}
	}
	for _, i := range x.in(0) {
		add(i, Message{Peer: i.Peer, Recv: true})
	}
	return p.Exchange(s, unsafe.Add(p.mem, p.list()), messages)
}

// complaints are the words that exchange writes.
func (p *Clique) complaints() []uint32 {
	return unsafe.Slice((*uint32)(p.wrong), wrongBytes/4*p.c.Size())
}

// Failure returns the error of a kernel that waits for ever: a message has another length than its
// Recv. It costs the host a few nanoseconds.
func (p *Clique) Failure() error {
	words := p.complaints()
	for r := range p.c.Size() {
		if w := words[wrongBytes/4*r:]; atomic.LoadUint32(&w[0]) != 0 {
			return fmt.Errorf("a message from rank %d has %d bytes, and Recv takes %d",
				r, uint64(w[1])|uint64(w[3]>>16)<<32, uint64(w[2])|uint64(w[3]&0xffff)<<32)
		}
	}
	return nil
}
