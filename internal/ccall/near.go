//go:build amd64 || arm64

package ccall

// Near stores what Here(0) does, in nanoseconds: it follows the frame pointers that Go
// keeps. Where the compiler has put a function into another, only the inner one's place
// is there: what an application calls of the framework must be go:noinline, or String
// passes over both.
func (s *Site) Near() { near(s) }

//go:noescape
func near(s *Site)
