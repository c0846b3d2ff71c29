// Package harness runs programs, ours and those of peers, and keeps what they
// measure as rows of bench/results.
package harness
