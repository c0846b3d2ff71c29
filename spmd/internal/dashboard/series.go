package dashboard

const (
	mostNumbers = 32
	mostPoints  = 2048 // of a number. If there are more, every other one goes
)

// series is the points of a number, evenly thinned out.
type series struct {
	name   string
	points []point
	last   point
	every  float64 // seconds between two points, at least
}

type point struct{ at, value float64 }

func (s *series) add(at, value float64) {
	s.last = point{at, value}
	if n := len(s.points); n > 0 && at-s.points[n-1].at < s.every {
		return
	}
	if len(s.points) == mostPoints {
		kept := s.points[:0]
		for i := 0; i < mostPoints; i += 2 {
			kept = append(kept, s.points[i])
		}
		s.points = kept
		s.every = max(2*s.every, (at-s.points[0].at)/mostPoints)
	}
	s.points = append(s.points, s.last)
}

// after are the points later than a time.
func (s *series) after(have float64) [][2]float64 {
	list := [][2]float64{}
	for _, p := range s.points {
		if p.at > have {
			list = append(list, [2]float64{p.at, p.value})
		}
	}
	return list
}
