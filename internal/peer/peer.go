// Package peer does collectives and messages on GPUs of a node that reach each other's memory, by kernels and copies.
package peer

import (
	"lockstep/cuda"
	"lockstep/cudampi"
)

// Comm is ranks on one node whose devices reach each other's memory.
type Comm = cudampi.Peers

// Open allocates memory for collectives between the devices and opens it to all ranks. Collective; it blocks.
func Open(c *cudampi.Comm, d *cuda.Device, room int) (*Comm, error) { return c.OpenPeers(d, room) }

// OnDevice makes a DeviceComm of c, and returns what carries its collectives between devices that reach each other, nil
// where MPI or shared memory carries them. Collective; it blocks.
func OnDevice(c *cudampi.Comm, d *cuda.Device, cfg cudampi.DeviceConfig) (*cudampi.DeviceComm, *Comm, error) {
	k, err := c.OnDevice(d, cfg)
	if err != nil {
		return nil, nil, err
	}
	return k, k.Peers(), nil
}

// ListBytes is the device memory that Comm.Exchange needs for n messages, 0 for few.
func ListBytes(n int) int { return cudampi.ListBytes(n) }

// UUIDs returns the UUIDs of the ranks' devices, of which d is this rank's. Collective; it blocks.
func UUIDs(c *cudampi.Comm, d *cuda.Device) ([]string, error) { return c.UUIDs(d) }
