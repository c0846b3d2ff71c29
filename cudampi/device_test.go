package cudampi_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/commtest"
	"lockstep/internal/devtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/shm"
)

// TestMain stops MPI after the benchmarks, which leave it on, and removes the doubles.
func TestMain(m *testing.M) {
	code := mpirun.Main(m)
	if err := devtest.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := cudampi.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// ways are those of MPI alone; package peer runs the same tests on others.
func ways() (list []devtest.Opener) {
	for _, path := range []cudampi.Path{cudampi.Staged, cudampi.AwareMPI} {
		list = append(list, devtest.Opener{Name: path.String(), Open: func(t *testing.T, c *shm.Comm, d *cuda.Device) *cudampi.DeviceComm {
			return devtest.OnPath(t, c, path, func(cfg cudampi.DeviceConfig) (*cudampi.DeviceComm, error) { return c.OnDevice(d, cfg) })
		}})
	}
	return list
}

func TestDeviceCollectives(t *testing.T) { devtest.Collectives(t, ways()...) }
func TestDeviceMismatch(t *testing.T)    { devtest.Mismatch(t, ways()...) }
func TestDeviceGraph(t *testing.T)       { devtest.Graph(t, ways()...) }
func TestDeviceOrder(t *testing.T)       { devtest.Order(t, ways()...) }
func TestDeviceStreams(t *testing.T)     { devtest.Streams(t, ways()...) }
func TestDeviceRelease(t *testing.T)     { devtest.Release(t, ways()...) }

// TestWaitEventLetsMessagesThrough has rank 0 wait for a stream that rank 1 sets free, after it has taken more messages
// of rank 0 than MPI can have delivered when it said that they may be forgotten.
func TestWaitEventLetsMessagesThrough(t *testing.T) {
	devtest.OnDevices(t, []int{2}, map[string]string{"FAKECUDA_DELAY": "0"}, func(t *testing.T, c *shm.Comm, d *cuda.Device) {
		mem, err := shm.Map(c.Comm, 4096)
		commtest.Must(t, err)
		word := unsafe.Pointer(&mem[0])
		commtest.Must(t, d.RegisterHost(word, 4096))
		const n, messages = 100, 20_000
		x := commtest.Filled[float64](c.Rank(), n)
		for range messages {
			if c.Rank() == 0 {
				commtest.Must(t, c.Comm.Send(x.Ptr(), n, elem.Float64, 1))
			} else {
				commtest.Must(t, c.Comm.Recv(x.Ptr(), n, elem.Float64, 0))
			}
		}
		if c.Rank() == 1 {
			(*atomic.Uint32)(word).Store(1)
		} else {
			s, e := devtest.Must1(d.NewStream(0))(t), devtest.Must1(d.NewEvent(false))(t)
			commtest.Must(t, s.WaitValue(word, 1))
			commtest.Must(t, e.Record(s))
			commtest.Must(t, c.WaitEvent(e))
			commtest.Must(t, c.WaitStream(s))
			commtest.Must(t, errors.Join(e.Close(), s.Close()))
		}
		commtest.Must(t, d.UnregisterHost(word))
	})
}
