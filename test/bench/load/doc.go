// Package load runs one turn of a workload: producers and consumers of one implementation. A turn
// is a separate process, so that CPU time and peak memory belong to one implementation.
package load
