// Package model fits a model of time to measured all-reduces, and predicts times on more
// ranks and nodes.
package model
