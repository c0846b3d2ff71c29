package job

import (
	"slices"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/process"
)

// Startup is the uses of the time from the start of the process on, in milliseconds.
type Startup struct {
	Started time.Time // the process
	parts   []part
}

type part struct {
	name string
	ms   float64
}

// NewStartup returns the times of a start. Their first part is the time of the process before this
// call.
func NewStartup() Startup {
	age := process.Age()
	return Startup{time.Now().Add(-age), []part{{"process", float64(age.Milliseconds())}}}
}

// Begin starts a part and returns a function that ends it. A part may come in pieces.
func (s *Startup) Begin(name string) func() {
	at := time.Now()
	return func() {
		ms := float64(time.Since(at).Microseconds()) / 1e3
		if i := slices.IndexFunc(s.parts, func(p part) bool { return p.name == name }); i >= 0 {
			s.parts[i].ms += ms
			return
		}
		s.parts = append(s.parts, part{name, ms})
	}
}

// Each calls f with each part.
func (s *Startup) Each(f func(name string, ms float64)) {
	for _, p := range s.parts {
		f(p.name, p.ms)
	}
}

// Log returns the parts, and all of the time until now, as fields of a line of the log.
func (s *Startup) Log() *zerolog.Event {
	parts := zerolog.Dict()
	for _, p := range s.parts {
		parts = parts.Float64(p.name, p.ms)
	}
	return parts.Float64("all", float64(time.Since(s.Started).Microseconds())/1e3)
}
