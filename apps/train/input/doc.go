// Package input finds what the user gave: the files behind --data, and errors that are about them.
package input
