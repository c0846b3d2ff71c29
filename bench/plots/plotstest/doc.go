// Package plotstest checks figures in SVG files.
package plotstest
