//go:build amd64 || arm64

package ccall

// Near stores what Here(0) does, in nanoseconds: it follows the frame pointers that Go keeps.
//
// If the compiler has inlined a function, only the inner one's place is there. So functions of the
// framework that an application calls must be go:noinline, or String passes over both.
func (s *Site) Near() { near(s) }

//go:noescape
func near(s *Site)
