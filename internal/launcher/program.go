package launcher

import (
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"io"
	"os"
	"strings"
)

// Linked is what the tables of a program's file say.
type Linked struct {
	Machine elf.Machine
	Arch    string // the machine as GOARCH has it
	MPI     string // the library that it is linked with: "libmpi.so.40"; "" for none
}

// ReadLinked reads the tables of a file. An error says that it is no ELF file.
func ReadLinked(r io.ReaderAt) (l Linked, err error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return l, err
	}
	needed, _ := f.ImportedLibraries() // none if it is linked statically
	for _, lib := range needed {
		if Family(lib) != "" {
			l.MPI = lib
		}
	}
	l.Machine, l.Arch = f.Machine, cmp.Or(map[elf.Machine]string{
		elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_PPC64: "ppc64le", elf.EM_S390: "s390x",
		elf.EM_RISCV: "riscv64", elf.EM_LOONGARCH: "loong64",
	}[f.Machine], strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_")))
	return l, nil
}

// Family names the makers of a library, if it is of MPI. MPICH's descendants share the number 12.
func Family(lib string) string {
	switch {
	case strings.HasPrefix(lib, "libmpich.so"), lib == "libmpi.so.12":
		return "MPICH"
	case strings.HasPrefix(lib, "libmpi.so"):
		return "Open MPI"
	}
	return ""
}

// Checksum returns the SHA-256 of a file.
func Checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
