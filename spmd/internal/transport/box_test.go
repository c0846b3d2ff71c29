package transport

import (
	"encoding/binary"
	"testing"

	"lockstep/internal/elem"
)

// TestBoxOfOneBehind: a box holds what has been sent and not taken,
// however many have gone through it.
func TestBoxOfOneBehind(t *testing.T) {
	var b box
	const behind = 5
	for i := range 20_000 {
		b.put(binary.LittleEndian.AppendUint64(nil, uint64(i)), elem.Uint64)
		if i < behind {
			continue
		}
		m := b.take().data
		if got := int(binary.LittleEndian.Uint64(m)); got != i-behind {
			t.Fatalf("message %d comes as the %d-th", got, i-behind)
		}
		b.recycle(m)
	}
	if got := cap(b.full); got > 8*behind {
		t.Errorf("there is room for %d messages, of which %d are left", got, behind)
	}
}
