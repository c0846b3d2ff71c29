package spmd

import "testing"

// What a rank's pulse holds does not end rank 0, which compares it.
func FuzzPulse(f *testing.F) {
	f.Add([]byte(`{"p":[{"c":"world","l":[[1,2]],"r":[{"n":1,"s":2,"t":"at a.go:1: Barrier"}]}]}`), []byte(`{"p":[{"c":"world","l":[[1,3]],"r":[{"n":1,"s":3,"t":"x"}]}]}`))
	f.Add([]byte(`{"p":[{"c":"w","l":[[1,2]]}]}`), []byte(`{"p":[{"c":"w","l":[[1,3]]}]}`))
	f.Add([]byte(`{"s":{"e":true,"c":[{"c":"w","r":1}]}}`), []byte(`{"s":{"c":[{"c":"w","n":3,"i":"x","p":[{"Peer":1,"Sent":2,"Received":4000000000}]}]}}`))
	f.Add([]byte(`null`), []byte(`{"p":[{},{}],"s":{}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var seen library
		seen.compare(0, a)
		seen.compare(1, b)
		seen.compare(0, b)
		seen.stuck(0)
	})
}
