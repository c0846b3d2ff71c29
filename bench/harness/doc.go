// Package harness runs programs, ours and those of peers, and keeps their measurements as rows of
// bench/results.
package harness
