package cudampi

import "unsafe"

// Request is a message of bytes under way, begun by StartSend or StartRecv. When that is over it
// can begin another, which then allocates nothing.
type Request struct {
	c   *Comm
	op  string
	req *request       // apart from Go pointers
	buf unsafe.Pointer // memory that MPI uses, kept from the collector, which moves nothing that lies on the heap
}

// Stream is a kind of messages. Those of one Stream between two ranks arrive in their order,
// whatever others do. The application's, 0, are of the type that their receiver expects.
type Stream int

// The other streams there are. Their numbers are tags.
const (
	Pieces Stream = tagInternal + 1 + iota // of device memory, on the host
	Steps                                  // of collectives on device memory
)

// StartSend begins to send bytes at src to rank to. It does not block. src must not change until
// Test says that r is over. Source: mpi.h, MPI_Isend.
func (c *Comm) StartSend(r *Request, src unsafe.Pointer, bytes, to int, s Stream) error {
	return c.start(r, "MPI_Isend", src, bytes, to, s, outgoing)
}

// StartRecv begins to receive bytes from rank from at dst. It does not block. dst is valid when
// Test says that r is over. Source: mpi.h, MPI_Irecv.
func (c *Comm) StartRecv(r *Request, dst unsafe.Pointer, bytes, from int, s Stream) error {
	return c.start(r, "MPI_Irecv", dst, bytes, from, s, incoming)
}

func (c *Comm) start(r *Request, op string, buf unsafe.Pointer, bytes, peer int, s Stream, recv bool) error {
	if err := c.Usable(op); err != nil {
		return err
	}
	if err := c.CheckRank(op, peer); err != nil {
		return err
	}
	if bytes < 0 || bytes > MostBytes {
		return c.Errorf(op, ErrCount, "%d bytes: want 0 to %d", bytes, MostBytes)
	}
	if r.c, r.op, r.buf = c, op, buf; r.req == nil {
		r.req = new(request)
	}
	return c.Check(op, sysStart(c, buf, bytes, peer, int(s), recv, r.req))
}

// MostBytes is the most bytes of a message of StartSend.
const MostBytes = 1 << 30

// Test reports whether a message is over. It does not block, and lets MPI go on with others. It is
// not called again after that. Source: mpi.h, MPI_Test.
func (r *Request) Test() (over bool, err error) {
	over, code := sysTestChunk(r.req)
	if over || code != success {
		r.buf = nil
	}
	return over, r.c.Check(r.op, code)
}
