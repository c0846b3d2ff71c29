package transport

import (
	"unsafe"

	"lockstep/spmd/internal/coll"
)

// Make has t make a call that it does not have itself, of its steps: on the host, or on a Bare
// queue. local does the steps that concern this rank alone. work is memory of the call's Scratch.
func Make(t Transport, q Issuer, c *coll.Call, rank, size int, work unsafe.Pointer,
	local func(q Issuer, s coll.Call) error) (err error) {
	var messages []coll.Call
	c.Steps(rank, size, &t.Caps().Library, work, func(s coll.Call) bool {
		switch kind := s.Kind.Traits(); {
		case kind.Local:
			err = local(q, s)
		case kind.Message:
			messages = append(messages, s)
		default:
			err = t.Do(q, s)
		}
		return err == nil
	})
	if err != nil || len(messages) == 0 {
		return err
	}
	return t.Group(q, messages, nil)
}

func AppendMessages(list, calls []coll.Call) []coll.Call {
	for i := range calls {
		calls[i].Messages(func(m coll.Call) bool {
			list = append(list, m)
			return true
		})
	}
	return list
}
