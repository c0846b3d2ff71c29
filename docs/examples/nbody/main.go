// Nbody moves bodies that attract each other. Each rank moves some, and gathers the places of all.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/random"
)

func main() {
	spmd.Main(pflag.NewFlagSet("nbody", pflag.ExitOnError), nbody)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func nbodyKick(i int, v, all []float64, first int, dt float64) (energy float64) {
	at, n, ax, ay, az, potential := 3*(first+i), float64(len(all)/3), 0.0, 0.0, 0.0, 0.0
	for j := 0; j < len(all); j += 3 {
		x, y, z := all[j]-all[at], all[j+1]-all[at+1], all[j+2]-all[at+2]
		r := 1 / math.Sqrt(x*x+y*y+z*z+0.01) // bodies that meet do not fly apart
		ax, ay, az, potential = ax+x*r*r*r/n, ay+y*r*r*r/n, az+z*r*r*r/n, potential-r/n
	}
	x, y, z := v[3*i], v[3*i+1], v[3*i+2]
	v[3*i], v[3*i+1], v[3*i+2] = x+dt*ax, y+dt*ay, z+dt*az
	return (x*x+y*y+z*z)/2 + (potential+10/n)/2 // itself is among all
}

//spmd:kernel
func nbodyDrift(i int, x, v []float64, dt float64) { x[i] += dt * v[i] }

func nbody(_ context.Context, w *spmd.World) error {
	const n, dt = 1200, 0.005 // n divides by 1 to 6 ranks
	mine := spmd.ShardOf(n, w.Rank(), w.Size())
	mem, err := spmd.Alloc[float64](w, 3*n+1+3*mine.Len)
	s, err2 := w.NewStream("nbody")
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	c, places, energy, v := w.Comm().On(s), mem.Slice(0, 3*n), mem.Slice(3*n, 3*n+1), mem.Slice(3*n+1, mem.Len())
	x := places.Slice(3*mine.Off, 3*(mine.Off+mine.Len)) // AllGather in place
	err = errors.Join(v.SetAll(0), random.Normal(s, x, 1, 3*mine.Off), spmd.AllGather(c, places, x))
	for step := 0; err == nil && step <= 200; step++ {
		err = errors.Join(launchNbodyKick(s, energy, mine.Len, v, places, mine.Off, dt),
			launchNbodyDrift(s, 3*mine.Len, x, v, dt), spmd.AllGather(c, places, x))
		if step%10 == 0 && err == nil {
			sum, err2 := hostdata.AllReduce(w.Comm(), energy.At(0)/n, spmd.Sum)
			err = errors.Join(err2, w.Emit(map[string]any{"time": dt * float64(step), "energy": sum}))
			if step%100 == 0 && w.Rank() == 0 {
				fmt.Printf("step %d: energy %.4f\n", step, sum)
			}
		}
	}
	return err
}
