// Package model fits a model of time to measured all-reduces, and says what to
// expect on more ranks and nodes.
package model
