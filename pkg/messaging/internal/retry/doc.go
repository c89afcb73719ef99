// Package retry has what becomes of a message whose handler failed: when the next attempt is, and the
// copies on retry and dead-letter topics.
package retry
