package spmd

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
)

// checkMessages compares the messages of a call with what their receivers expect, before any is sent: the sender tells
// what it will send, and from where. The caller is in its turn in MPI, and the messages are counted.
func (c *call) checkMessages() error {
	st := c.comm
	cmds := []call{*c}
	if c.Kind == coll.Group {
		cmds = c.group.cmds
	}
	var list []message
	for i := range cmds {
		list = cmds[i].appendContracts(list)
	}
	var group shm.P2P
	for i := range list {
		m := &list[i]
		if !st.compares(list[i:]) {
			continue
		}
		p, n := unsafe.Pointer(&m.contract), int(unsafe.Sizeof(m.contract))
		var err error
		switch {
		case m.recv && len(list) == 1:
			err = st.terms.Recv(p, n, elem.Uint8, m.peer)
		case m.recv:
			err = group.Recv(st.terms, p, n, elem.Uint8, m.peer)
		default:
			m.contract.terms = m.mine
			copy(m.site[:len(m.site)-1], c.place())
			st.note(m)
			if len(list) == 1 {
				err = st.terms.Send(p, n, elem.Uint8, m.peer)
			} else {
				err = group.Send(st.terms, p, n, elem.Uint8, m.peer)
			}
		}
		if err != nil {
			return err
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i := range list {
		m := &list[i]
		if m.recv && m.contract.kind != 0 && (m.contract.n != m.mine.n || m.contract.typ != m.mine.typ && m.mine.n > 0) {
			at := c.place()
			return fmt.Errorf("%s: %w: rank %d %v; rank %d at %s: %v (%s, %d ranks)", at, ErrContract, m.peer, &m.contract, st.rank, at, &m.mine, st.id, st.size)
		}
	}
	return nil
}

// note keeps the last message to a rank, for who has to say that nobody has received it.
func (st *commState) note(m *message) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.sends == nil {
		st.sends = map[int]string{}
	}
	st.sends[m.peer] = m.after()
}

// message is one message of a call.
type message struct {
	contract // the sender's
	mine     terms
	peer     int
	recv     bool
}

// appendContracts appends the messages that a call is made of.
func (c *call) appendContracts(list []message) []message {
	c.Messages(func(m coll.Call) bool {
		list = append(list, message{mine: terms{kind: int64(m.Kind), typ: int64(m.Type), n: int64(m.N)}, peer: int(m.Root), recv: m.Kind == coll.Recv})
		return true
	})
	return list
}

// compares says whether --check compares the first of the messages that are left of a call, which both ends find by its
// number between them.
func (st *commState) compares(left []message) bool {
	if st.w.check != checkSome {
		return true
	}
	v := st.activity.peers[left[0].peer].Load()
	number := uint32(v)
	if left[0].recv {
		number = uint32(v >> 32)
	}
	for _, m := range left[1:] {
		if m.peer == left[0].peer && m.recv == left[0].recv {
			number--
		}
	}
	return (number-1)%contractEvery == 0
}

// place is where the call was made.
func (c *call) place() string {
	if c.site != nil {
		return c.site.String()
	}
	return ccall.At()
}
