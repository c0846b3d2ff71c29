// Package plots has what figures of measurements share: the marks of their axes, and the words of
// their legends.
package plots
