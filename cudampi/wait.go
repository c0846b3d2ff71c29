package cudampi

const (
	// spinsBeforePump is how often a waiting rank looks before it lets MPI and others on its core
	// run, about 20 us.
	spinsBeforePump = 50
	// pumpsBeforeSleep is how often it then lets them run if it is to sleep soon.
	pumpsBeforeSleep = 4
)

// SleepSoon makes a rank that waits for a device sleep after some looks. It is for ranks that have
// too few cores: a rank that looks on keeps them from the work that it waits for.
func (c *Comm) SleepSoon() { c.soon = true }

// Pause makes a pause between two looks at a device, or another thing that it waits for.
// It lets MPI progress: another rank may wait for a message of this one, and the device for that
// rank. Only the thread that may enter MPI calls it. Source: mpi.h, MPI_Iprobe.
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
