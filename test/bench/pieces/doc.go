// Package pieces has what scenarios measure or drive with, each run by a process of its own:
// producers, consumers and other clients, ours and those that we compare with.
package pieces
