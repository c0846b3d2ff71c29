package peer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
)

// TestKernelsCompile compiles with the real compiler, which needs no GPU, and checks that the
// blocks that kernels are launched with find the registers they need.
func TestKernelsCompile(t *testing.T) {
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	for _, capability := range []int{80, 90} {
		t.Run(fmt.Sprintf("sm_%d", capability), func(t *testing.T) {
			image, _, err := nvrtc.DefaultCache().Compile("device.cu", FoldSource+peersSource,
				nvrtc.Options{Capability: capability})
			testkit.Must(t, err)
			registers, threads := needs(t, image)
			for _, k := range append(slices.Clone(table), FoldKernel) {
				const all = 65536 // of a multiprocessor
				n, ok := registers[k.Name]
				if each := (n + 7) / 8 * 8; !ok || n == 0 || each*k.Threads > all {
					t.Errorf("%s needs %d registers (in the binary: %v): blocks of %d threads cannot be launched",
						k.Name, n, ok, k.Threads)
				}
				if threads[k.Name] != k.Threads {
					t.Errorf("%s is compiled for blocks of %d threads, and launched with %d",
						k.Name, threads[k.Name], k.Threads)
				}
			}
		})
	}
}

// TestEarlyKernelWaits: a kernel that is launched early touches no memory before it
// has waited for earlier work.
func TestEarlyKernelWaits(t *testing.T) {
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	// which it does not know: PTX
	image, err := nvrtc.Compile("device.cu", FoldSource+peersSource, nvrtc.Options{Capability: 1 << 20})
	testkit.Must(t, err)
	access := regexp.MustCompile(`\b(ld|st|atom|red)\.(volatile\.)?(global\.)?[^ ]*`)
	for _, kernel := range []string{"small_sum", "small_reduction", "small_moves", "exchange"} {
		_, text, found := strings.Cut(string(image), ".entry "+kernel+"(")
		text, _, _ = strings.Cut(text, ".entry ")
		var steps []string
		for line := range strings.Lines(text) {
			if m := access.FindString(line); m != "" && !strings.HasPrefix(m, "ld.param") {
				steps = append(steps, m)
			} else if strings.Contains(line, "griddepcontrol.") {
				steps = append(steps, strings.TrimSuffix(strings.TrimSpace(line), ";"))
			}
		}
		const wait, next = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
		if !found || len(steps) < 4 || steps[0] != wait || strings.Count(text, wait) != 1 ||
			strings.Count(text, next) != 1 {
			t.Errorf("%s (found: %v) does, in this order: %q", kernel, found, steps)
		}
	}
}

// needs returns the registers that each kernel of a binary needs, and the largest block that it is
// compiled for. Source: the attributes REGCOUNT and MAX_THREADS as cuobjdump -elf shows them; each
// has a format, a kind, and for format 4 a length and as many bytes.
func needs(t *testing.T, image []byte) (registers, threads map[string]int) {
	t.Helper()
	image = bytes.Clone(image)
	copy(image[20:], []byte{1, 0, 0, 0}) // CUDA has its own version there
	f, err := elf.NewFile(bytes.NewReader(image))
	testkit.Must(t, err)
	symbols, err := f.Symbols()
	testkit.Must(t, err)
	registers, threads = make(map[string]int), make(map[string]int)
	const prefix, registerCount, maxThreads = ".nv.info", 0x2f, 0x05
	for _, s := range f.Sections {
		if len(s.Name) < len(prefix) || s.Name[:len(prefix)] != prefix {
			continue
		}
		data, err := s.Data()
		testkit.Must(t, err)
		for word := binary.LittleEndian.Uint32; len(data) >= 4; {
			length := 4
			if data[0] == 4 {
				length += int(binary.LittleEndian.Uint16(data[2:]))
			}
			switch body := data[4:length]; data[1] {
			case registerCount:
				registers[symbols[word(body)-1].Name] = int(word(body[4:]))
			case maxThreads:
				threads[s.Name[len(prefix)+1:]] = int(word(body) * word(body[4:]) * word(body[8:]))
			}
			data = data[length:]
		}
	}
	return registers, threads
}
