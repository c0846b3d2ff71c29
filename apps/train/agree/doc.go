// Package agree is how ranks that work at something together stay together: each learns what every
// rank has, and an error of one becomes the error of all.
package agree
