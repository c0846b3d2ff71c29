// Package plots draws measurements as SVG, in one style.
package plots
