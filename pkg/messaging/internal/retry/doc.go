// Package retry decides the next attempt of a message whose handler failed, and makes the copies on
// retry and dead-letter topics. It imports publish, but not consume.
package retry
