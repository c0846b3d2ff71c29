package peer

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/internal/transfer"
)

// stagedAllReduce does small all-reduces through host memory that the ranks of one node share. One kernel on each rank puts its
// part there, takes the parts of the others, and reduces them. The host only launches it. By copies, there would be two, and
// the host would wait between them. A kernel that waits for a rank which has died ends with its process.
type stagedAllReduce struct {
	c     *shm.Comm
	dev   *cuda.Device
	k     *kernels
	mem   []byte // the inbox
	fixed bool
	table unsafe.Pointer // device memory: the address of the inbox, and from inboxEpochs on the epochs of the blocks
	order sequence
}

const (
	inboxEpochs = 256
	inboxTrial  = 512
	inboxTable  = inboxTrial + 8
)

// openStagedAllReduce fails, on all ranks and with a reason, where kernels cannot be compiled, where there are too many ranks, and
// where two share a device. Collective.
func openStagedAllReduce(c *shm.Comm, d *cuda.Device) (*stagedAllReduce, error) {
	if c.Size() > peerRanks {
		return nil, fmt.Errorf("there are %d ranks, more than %d", c.Size(), peerRanks)
	}
	if apart, err := apart(c, d); err != nil {
		return nil, err
	} else if !apart {
		return nil, errors.New("ranks share a device")
	}
	k, err := loadKernels(c, d)
	if err != nil {
		return nil, err
	}
	o := &stagedAllReduce{c: c, dev: d, k: k}
	o.mem, err = shm.Map(c.Comm, inboxBytes(c.Size(), smallMost))
	if err == nil {
		err = o.open()
	}
	if err := c.FirstFailure(err); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

func (o *stagedAllReduce) open() (err error) {
	if err := o.dev.RegisterHost(unsafe.Pointer(&o.mem[0]), len(o.mem)); err != nil {
		return err
	}
	o.fixed = true
	if o.order.done, err = o.dev.NewEvent(false); err != nil {
		return err
	}
	if o.table, err = o.dev.Malloc(inboxTable); err != nil {
		return err
	}
	address := uint64(ccall.Address(unsafe.Pointer(&o.mem[0])))
	err = onStream(o.dev, func(s *cuda.Stream) error {
		if err := s.Fill(o.table, 4, 0, inboxTable/4); err != nil {
			return err
		}
		for i := range 2 { // of a pointer, the low half first
			if err := s.Fill(unsafe.Add(o.table, 4*i), 4, address>>(32*i)&0xffffffff, 1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return o.try()
}

// try has a rank send itself a word, so that a device whose kernels do not see the memory is not found out by wrong sums.
func (o *stagedAllReduce) try() error {
	const word = 0x5eed
	seen, err := o.dev.MallocHost(4)
	if err != nil {
		return err
	}
	src, dst := unsafe.Add(o.table, inboxTrial), unsafe.Add(o.table, inboxTrial+4)
	err = onStream(o.dev, func(s *cuda.Stream) error {
		if err := s.Fill(src, 4, word, 1); err != nil {
			return err
		}
		x := transfer.Transfer{What: transfer.AllReduce, Dst: dst, Src: src, N: 1, Type: elem.Uint32, Op: elem.Sum}
		m, _ := smallOf(&x)
		own := 2 * smallMost * o.c.Rank() // where the others will look for what this rank sends
		if err := o.k.smallOn(s, 0, 1, &m, o.place(own)); err != nil {
			return err
		}
		return s.Copy(seen, dst, 4)
	})
	if got := *(*uint32)(seen); err == nil && got != word {
		err = fmt.Errorf("kernels do not reach host memory: %#x instead of %#x", got, uint32(word))
	}
	return errors.Join(err, o.dev.FreeHost(seen))
}

// close gives the memory back, once this rank's kernels are over.
func (o *stagedAllReduce) close() error {
	err := o.k.close()
	if o.order.done != nil {
		err = errors.Join(err, o.order.done.Close())
	}
	err = errors.Join(err, o.dev.Free(o.table))
	if o.fixed {
		err = errors.Join(err, o.dev.UnregisterHost(unsafe.Pointer(&o.mem[0])))
	}
	if o.mem != nil {
		err = errors.Join(err, unix.Munmap(o.mem))
	}
	*o = stagedAllReduce{}
	return err
}

// place is the inbox, or what lies behind offset in it.
func (o *stagedAllReduce) place(offset int) *place {
	return &place{table: o.table, epochs: unsafe.Add(o.table, inboxEpochs), copies: 1, offset: offset, room: smallMost}
}

// allReduce enqueues an all-reduce that the ranks have agreed on.
func (o *stagedAllReduce) allReduce(x *transfer.Transfer, s *cuda.Stream) error {
	return o.order.next(s, func() error {
		m, _ := smallOf(x)
		return o.k.smallOn(s, o.c.Rank(), o.c.Size(), &m, o.place(0))
	})
}
