// Package agree keeps ranks together that work at one thing: each learns what every rank has, and
// an error of one becomes the error of all.
package agree
