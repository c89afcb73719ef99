// Package publish stores records. partition.go is the way of a record; replace.go says what happens
// when a producer is lost, and entry_writer.go stores what a source numbers, each number once.
package publish
