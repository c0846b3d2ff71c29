package spmd_test

import (
	"context"
	"errors"
	"time"

	"lockstep/spmd"
)

// messageRows are the faults of messages that do not match.
func messageRows() []mishap {
	const soon = 5 * time.Second
	check := []string{"--check"}
	const different = "the ranks called different collectives: rank {rank} at spmd/fault_messages_test.go:"
	both := []string{": Send of 10 float32; rank 0 at spmd/fault_messages_test.go:",
		": Recv of 5 float64 (world, 3 ranks)"}
	return []mishap{
		{name: "a message of another type, --check", ranks: 3, within: soon, args: check,
			run: otherType(""), cause: different, want: both},
		{name: "a message of another type on a stream, --check", more: true, ranks: 3, within: soon,
			args: check, run: otherType("stream"), cause: different, want: both},
		{name: "a message of another type on a stream", local: true, ranks: 3, within: soon, run: otherType("stream"),
			cause: "message from rank {rank} has float32 elements, 5 float64 elements expected",
			want:  []string{"rank=0"}},
		{name: "a message of another type in a Group, --check", more: true, ranks: 3, within: soon,
			args: check, run: otherType("group"), cause: different, want: both},
		{name: "a message of another type in a SendRecv, --check", local: true, ranks: 3, within: soon,
			args: check, run: otherType("sendrecv"), cause: different, want: both},
		{name: "a message of another type, --check=sample", more: true, ranks: 3, within: soon,
			args: []string{"--check=sample"}, run: otherType("65th"), cause: different, want: both},
		{name: "a message that nobody receives, --check", local: true, ranks: 3, within: soon, args: check,
			run: unreceived, cause: "the ranks called different collectives: rank 0 has returned from " +
				"the program; rank {rank} has sent message 2 to it on \"world\"",
			want: []string{", Send of 10 float32 at spmd/fault_messages_test.go:", ": it has received 1"}},
		{name: "a Group that lacks a message", local: true, ranks: 3, within: soon, run: lackingGroup,
			cause: hung, want: []string{": the ranks wait for each other: ",
				"rank 0 is in Group of Send of 10 float32 to rank 2, Recv of 10 float32 from rank 2 at " +
					"spmd/fault_messages_test.go:", " and waits for rank {rank}; ",
				"rank {rank} is in Barrier at spmd/fault_messages_test.go:", " and waits for rank 0"}},
		{name: "all send first", more: true, ranks: 3, within: soon, run: sendFirst, cause: hung,
			want: []string{": the ranks wait for each other: ",
				"rank 0 is in Send of 1048576 float32 to rank 1 at spmd/fault_messages_test.go:",
				"rank {rank} is in Send of 1048576 float32 to rank 0 at"}},
		{name: "asleep before a Group", local: true, ranks: 3, within: faultTimeout + soon, args: hangFlag,
			run: sleepsBeforeGroup, cause: hung, want: []string{
				"rank 0 waits in Group of Send of 10 float32 to rank 2, Recv of 10 float32 from rank 2\n"}},
	}
}

// otherType makes the victim send rank 0 another type and length than rank 0 receives.
func otherType(how string) func(context.Context, *spmd.World, bool) error {
	return func(_ context.Context, w *spmd.World, victim bool) error {
		x, err := spmd.Alloc[float32](w, 10)
		if err != nil {
			return err
		}
		y, err := spmd.Alloc[float64](w, 5)
		if err != nil {
			return err
		}
		s, err := w.NewStream("messages")
		if err != nil {
			return err
		}
		c := w.Comm()
		if how == "65th" { // the 1st and the 65th are compared
			for range 64 {
				if victim {
					err = spmd.Send(c, x, 0)
				} else if w.Rank() == 0 {
					err = spmd.Recv(c, x, 2)
				}
				if err != nil {
					return err
				}
			}
		}
		if how == "stream" {
			c = c.On(s)
		}
		send := func() error { return spmd.Send(c, x, 0) }
		recv := func() error { return spmd.Recv(c, y, 2) }
		switch {
		case how == "group":
			send = func() error { return c.Group(func() error { return spmd.Send(c, x, 0) }) }
			recv = func() error { return c.Group(func() error { return spmd.Recv(c, y, 2) }) }
		case how == "sendrecv":
			none := y.Slice(0, 0) // goes the other way, and is of one type
			send = func() error { return errors.Join(spmd.Send(c, x, 0), spmd.Recv(c, none, 0)) }
			recv = func() error { return spmd.SendRecv(c, y, 2, none, 2) }
		}
		switch {
		case victim:
			happens()
			err = send()
		case w.Rank() == 0:
			err = recv()
		}
		if err := errors.Join(err, s.Synchronize()); err != nil {
			return err
		}
		return spmd.Barrier(w.Comm())
	}
}

// unreceived makes the victim send one message more than rank 0 receives.
func unreceived(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[float32](w, 10)
	switch {
	case err != nil:
		return err
	case victim:
		happens()
		return errors.Join(spmd.Send(w.Comm(), x, 0), spmd.Send(w.Comm(), x, 0))
	case w.Rank() == 0:
		return spmd.Recv(w.Comm(), x, 2)
	}
	return nil
}

// lackingGroup makes ranks 0 and 2 exchange messages that the victim does not know of.
func lackingGroup(_ context.Context, w *spmd.World, victim bool) error {
	if w.Rank() == 0 {
		if err := swap(w); err != nil {
			return err
		}
	}
	if victim {
		happens()
	}
	return spmd.Barrier(w.Comm())
}

func sleepsBeforeGroup(_ context.Context, w *spmd.World, victim bool) error {
	if victim {
		happens()
		oversleep()
	}
	if w.Rank() == 0 {
		return swap(w)
	}
	return spmd.Barrier(w.Comm())
}

// swap exchanges messages with rank 2.
func swap(w *spmd.World) error {
	x, err := spmd.Alloc[float32](w, 20)
	if err != nil {
		return err
	}
	return w.Comm().Group(func() error {
		return errors.Join(spmd.Send(w.Comm(), x.Slice(0, 10), 2), spmd.Recv(w.Comm(), x.Slice(10, 20), 2))
	})
}

// sendFirst makes all ranks send round; no rank receives before it has sent.
func sendFirst(_ context.Context, w *spmd.World, victim bool) error {
	x, err := spmd.Alloc[float32](w, 1<<20)
	if err != nil {
		return err
	}
	if victim {
		happens()
	}
	n := w.Size()
	return errors.Join(spmd.Send(w.Comm(), x, (w.Rank()+1)%n), spmd.Recv(w.Comm(), x, (w.Rank()+n-1)%n))
}
