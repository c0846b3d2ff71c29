package cudampi_test

import (
	"bytes"
	"fmt"
	"math"
	"syscall"
	"testing"
	"unsafe"

	mpi "github.com/sbromberger/gompi"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

// Each of these tests shows one fault of gompi v0.2.0, and this package's way around it. A gompi
// that is mended fails them: then the guard can go.

// TestRawBroadcastOverwrites: BcastBytes counts bytes and sends 32-bit integers.
func TestRawBroadcastOverwrites(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		const n, room = 16, 64
		buf := make([]byte, room)
		fill := func() {
			for i := range buf {
				buf[i] = byte(100 + c.Rank())
			}
		}
		changed := func() (k int) {
			for _, b := range buf {
				if b != byte(100+c.Rank()) {
					k++
				}
			}
			return k
		}
		fill()
		mpi.NewCommunicator(nil).BcastBytes(buf[:n], 0)
		if k := changed(); c.Rank() == 1 && k != 4*n {
			t.Errorf("gompi's broadcast of %d bytes changes %d, it used to be %d", n, k, 4*n)
		}
		fill()
		commtest.Must(t, c.Broadcast(commtest.Ptr(buf), n, elem.Uint8, 0))
		if k := changed(); c.Rank() == 1 && k != n {
			t.Errorf("a broadcast of %d bytes changes %d", n, k)
		}
	})
}

// TestRawMaxTag: MaxTag is the address of the value. This package leaves no tag to its caller.
func TestRawMaxTag(t *testing.T) {
	onRanks(t, []int{4}, func(t *testing.T, c *cudampi.Comm) {
		tag, all := int64(mpi.NewCommunicator(nil).MaxTag), make([]int64, c.Size())
		commtest.Must(t, c.AllGather(commtest.Ptr(all), unsafe.Pointer(&tag), 1, elem.Int64))
		right := all[0] <= math.MaxInt32 // a tag is a C int, and its limit the same for all ranks
		for _, x := range all {
			right = right && x == all[0]
		}
		if right {
			t.Errorf("gompi's limit of tags may be right: %d on every rank", all[0])
		}
	})
}

// TestRawEmptySlice: gompi takes the address of the first element of a slice that has none.
func TestRawEmptySlice(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		panics := func() (p bool) {
			defer func() { p = recover() != nil }()
			mpi.NewCommunicator(nil).BcastFloat64s(nil, 0)
			return false
		}
		if !panics() {
			t.Error("gompi broadcasts an empty slice")
		}
		commtest.Must(t, c.Broadcast(nil, 0, elem.Float64, 0))
		commtest.Must(t, c.AllReduce(nil, nil, 0, elem.Float64, elem.Sum))
	})
}

// TestRawLengths: gompi takes the count from dst and reads beyond a shorter src. It takes any root
// for a call that has none.
func TestRawLengths(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		src, dst := []float64{1, 2, 3, 4}, make([]float64, 4)
		const noRoot = 99
		if err := mpi.NewCommunicator(nil).AllreduceFloat64s(dst, src[:1:1], mpi.OpSum, noRoot); err != nil {
			t.Errorf("gompi notices that dst has 4 elements and src 1, or the root: %v", err)
		}
		if dst[3] != 8 {
			t.Errorf("gompi's all-reduce of one element gives %v", dst)
		}
		// One count is for both here. If there are two, they are compared: within a rank, and
		// between ranks.
		commtest.Must(t, c.AllReduce(commtest.Ptr(dst), commtest.Ptr(src), 1, elem.Float64, elem.Sum))
		if want := []float64{2, 4, 6, 8}; fmt.Sprint(dst) != fmt.Sprint(want) {
			t.Errorf("all-reduce of one element gives %v, want %v", dst, want)
		}
		commtest.Refused(t, c, c.AllGatherV(commtest.Ptr(dst), commtest.Ptr(src), []int{1, 1, 1}, elem.Float64),
			"MPI_Allgatherv", cudampi.ErrCount, "3 counts", "2 ranks")
		if c.Rank() == 0 {
			commtest.Must(t, c.Send(commtest.Ptr(src), 4, elem.Float64, 1))
		} else {
			commtest.Refused(t, c, c.Recv(commtest.Ptr(dst), 2, elem.Float64, 0), "MPI_Recv", cudampi.ErrTruncate,
				"4 float64 elements, 2 expected")
		}
	})
}

// TestRawCount: a count above 2^32 loses its upper half on the way to C. The memory is only
// reserved, never touched.
func TestRawCount(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		mem, err := syscall.Mmap(-1, 0, 1<<32+4, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err != nil {
			t.Skipf("no 4 GiB of addresses: %v", err)
		}
		if c.Rank() == 0 {
			mem[0], mem[16] = 1, 1
		}
		mpi.NewCommunicator(nil).BcastBytes(mem, 0)
		if c.Rank() == 1 && (mem[0] != 1 || mem[16] != 0) {
			t.Errorf("gompi's broadcast of 2^32+4 bytes sent %d and %d", mem[0], mem[16])
		}
		commtest.Must(t, syscall.Munmap(mem))
	})
	// TestBeyondInt is the right one.
}

// TestRawStatus: gompi reads no status, so that MPI has to end the process for a failure to be
// noticed at all.
func TestRawStatus(t *testing.T) {
	out, err := alone(t, func(t *testing.T, c *cudampi.Comm) {
		x := []float64{1}
		commtest.Refused(t, c, c.SendRaw(commtest.Ptr(x), 1, elem.Float64, 99), "MPI_Send", cudampi.ErrRank)
		commtest.Refused(t, c, c.Send(commtest.Ptr(x), 1, elem.Float64, 99), "MPI_Send", cudampi.ErrRank,
			"rank 99 in a communicator of 1 ranks")
		fmt.Println("cudampi returned its errors")
		mpi.NewCommunicator(nil).SendFloat64s(x, 99, 0)
		fmt.Println("gompi returned")
	})
	if err == nil || bytes.Contains(out, []byte("gompi returned")) {
		t.Errorf("gompi survives a send to no rank:\n%s", out)
	}
	if !bytes.Contains(out, []byte("cudampi returned its errors")) { // MPI's last words do not always get out
		t.Errorf("not the failure that was to be shown:\n%s", out)
	}
}
