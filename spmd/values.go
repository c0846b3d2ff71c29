package spmd

import (
	"bytes"
	"encoding/gob"
	"fmt"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// BroadcastValue returns on every rank a copy of the v that root has, in the encoding of package encoding/gob: it carries
// numbers, strings, slices, maps, and of structs the exported fields. What an interface holds must be registered
// (gob.Register). On root, too, the result is a copy, so that all ranks have the same. What gob cannot carry is an error
// on every rank. For one number BroadcastNumber is quicker.
//
//	settings, err := spmd.BroadcastValue(w.Comm(), settings, 0)
//
// Collective, blocking. A stream of c has no part in it.
func BroadcastValue[V any](c Comm, v V, root int) (V, error) {
	var got V
	err := c.c.Exchange("BroadcastValue", coll.BroadcastValue, root, func() error {
		var mine []byte
		if c.Rank() == root {
			mine = encode(&v)
		}
		sent, err := control.Broadcast(c.c.Host(), mine, root)
		if err == nil {
			err = decode(sent, root, &got)
		}
		return err
	})
	return got, err
}

// AllGatherValue returns on every rank copies of the v of every rank, in rank order, encoded as by BroadcastValue. The
// values may differ in size. What gob cannot carry is an error on every rank.
//
// Collective, blocking. A stream of c has no part in it.
func AllGatherValue[V any](c Comm, v V) ([]V, error) {
	var all []V
	err := c.c.Exchange("AllGatherValue", coll.AllGatherValue, 0, func() error {
		sent, err := control.Gather(c.c.Host(), encode(&v))
		if err != nil {
			return err
		}
		all = make([]V, len(sent))
		for r := range all {
			if err := decode(sent[r], r, &all[r]); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// A message begins with a byte that says whether a value follows or why there is none.
const (
	isValue = iota
	isError
)

// encode returns the message for a value.
func encode(v any) []byte {
	var b bytes.Buffer
	b.WriteByte(isValue)
	if err := attempt(func() error { return gob.NewEncoder(&b).Encode(v) }); err != nil {
		return append([]byte{isError}, err.Error()...)
	}
	return b.Bytes()
}

// decode sets *v to what the message of a rank holds.
func decode(message []byte, rank int, v any) error {
	if message[0] == isError {
		return fmt.Errorf("rank %d: %s", rank, message[1:])
	}
	if err := attempt(func() error { return gob.NewDecoder(bytes.NewReader(message[1:])).Decode(v) }); err != nil {
		return fmt.Errorf("of rank %d's value: %w", rank, err)
	}
	return nil
}

// attempt makes an error of a panic: gob's of nil pointers, and those of a type's own methods.
func attempt(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	return fn()
}
