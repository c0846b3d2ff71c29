// Package plotstest checks files that package plots has written.
package plotstest
