package cudampi

const (
	// spinsBeforePump is how often a waiting rank looks before it lets MPI and others on its core run, about 20 us.
	spinsBeforePump = 50
	// pumpsBeforeSleep is how often it then lets them run where it is to sleep soon.
	pumpsBeforeSleep = 4
)

// SleepSoon has a rank that waits for a device sleep after some looks. It is for ranks that have too few cores: who looks on
// keeps them from what he waits for.
func (c *Comm) SleepSoon() { c.soon = true }

// Pause is what a rank does between two looks at what it waits for, such as a device. It lets MPI progress: another rank may wait
// for a message of this one, and the device for that rank. Only the thread that may enter MPI calls it. Source: mpi.h, MPI_Iprobe.
func (c *Comm) Pause(looks int) error {
	switch {
	case !c.soon && looks < spinsBeforePump:
		sysSpin(8)
		return nil
	case c.soon && looks > pumpsBeforeSleep:
		return c.Check("MPI_Iprobe", sysPump(c, 50_000))
	}
	return c.Check("MPI_Iprobe", sysPump(c, 0))
}
