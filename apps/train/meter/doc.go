// Package meter shows how far a run is, to a person at a terminal.
package meter
