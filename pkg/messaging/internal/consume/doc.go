// Package consume consumes subscriptions. run.go is the way of a message, top to bottom; the other
// files are its steps.
package consume
