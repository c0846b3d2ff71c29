package elem

// MixBits spreads every bit of x over all 64, for hashes of elements and for random numbers.
// Mixed words, each with its place, may be added up in any order. Source: Steele, Lea,
// Flood: Fast splittable pseudorandom number generators (OOPSLA 2014), mix64 with David
// Stafford's constants (variant 13).
func MixBits(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
