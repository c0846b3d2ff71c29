package transport

import (
	"fmt"

	"lockstep/spmd/internal/coll"
)

// WrongLength returns the error of a message that has another length than its receiver expects.
func WrongLength(m *coll.Call, bytes int) error {
	want := m.N * m.Type.Size()
	return fmt.Errorf("message from rank %d has %d bytes, %d (%d %v elements) expected",
		m.Root, bytes, want, m.N, m.Type)
}
