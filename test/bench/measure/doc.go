// Package measure runs pieces, which are measured, as child processes, compares them in turns and
// reports the figures.
package measure
