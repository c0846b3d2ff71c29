// Package input finds the files behind --data, and marks errors that are about the user's input.
package input
