// Package consume consumes subscriptions. run.go has the way of a message, top to bottom; the other
// files have its steps. The package imports publish, for copies of failed messages, and schedule;
// only package messaging imports it.
package consume
