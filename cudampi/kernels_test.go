package cudampi

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
)

// TestKernelsCompile compiles with the real compiler, which needs no GPU.
func TestKernelsCompile(t *testing.T) {
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	for _, capability := range []int{80, 90} {
		t.Run(fmt.Sprintf("sm_%d", capability), func(t *testing.T) {
			image, err := nvrtc.Compile("device.cu", kernelSource, nvrtc.Options{Capability: capability})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"fold", "peer_barrier", "peer_small", "peer_all_reduce"} {
				if !strings.Contains(string(image), "\x00"+name+"\x00") {
					t.Errorf("the binary has no kernel %s", name)
				}
			}
		})
	}
}
