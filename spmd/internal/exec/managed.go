package exec

// Place is one of the two places of managed memory.
type Place uint8

// The places.
const (
	ToDevice Place = iota
	ToHost
)

// Advice says how managed memory will be used.
type Advice uint8

// The advice there is.
const (
	ReadMostly Advice = iota + 1
	PreferDevice
	PreferHost
	AccessedByDevice
	// What Unadvise takes back.
	NotReadMostly
	PreferNone
	NotAccessedByDevice
)
