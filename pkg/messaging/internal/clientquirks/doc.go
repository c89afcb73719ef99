// Package clientquirks holds what the library knows about the inside of pulsar-client-go v0.21.0.
// Each file says what the client does and where, how the library handles it, and what breaks when
// the client changes; a test for each file fails then. Of this repository it imports pkg/backoff
// only.
package clientquirks
