// Package publish stores records. partition.go has the way of a record. replace.go replaces a lost
// producer. entry_writer.go stores the numbered positions of a source, each once. The package
// imports cluster, flush and read, but not consume.
package publish
