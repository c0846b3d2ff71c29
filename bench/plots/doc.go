// Package plots has what figures of measurements share: the marks of their axes,
// and words of their legends.
package plots
