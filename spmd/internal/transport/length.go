package transport

import (
	"fmt"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Wrong returns the error of a message of so many bytes that has another length or type than its
// receiver expects; nil if it has not.
func Wrong(m *coll.Call, bytes int, t elem.Type) error {
	want := m.N * m.Type.Size()
	switch {
	case t != m.Type:
		return fmt.Errorf("message from rank %d has %v elements, %d %v elements expected", m.Root, t, m.N, m.Type)
	case bytes != want:
		return fmt.Errorf("message from rank %d has %d bytes, %d (%d %v elements) expected",
			m.Root, bytes, want, m.N, m.Type)
	}
	return nil
}
