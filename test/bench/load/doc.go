// Package load runs one turn of a workload: producers and consumers of one implementation, in a
// process of its own, so that its CPU time and peak memory are its alone.
package load
