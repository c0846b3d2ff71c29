// Package plotstest checks figures that were written as SVG.
package plotstest
