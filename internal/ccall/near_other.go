//go:build !amd64 && !arm64

package ccall

// Near stores what Here(0) does.
func (s *Site) Near() { s.Here(1) }
