package traintest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// BinFile returns a token file of llm.c.
func BinFile(magic, version, count int32, tokens []uint16) string {
	b := make([]byte, 1024, 1024+2*len(tokens))
	for i, v := range []int32{magic, version, count} {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	for _, x := range tokens {
		b = binary.LittleEndian.AppendUint16(b, x)
	}
	return string(b)
}

// GoodBin returns a token file of llm.c with a good header.
func GoodBin(tokens []uint16) string { return BinFile(20240520, 1, int32(len(tokens)), tokens) }

// Write makes a file below dir and returns its path.
func Write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
