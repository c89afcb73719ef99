// Package clientquirks handles properties of pulsar-client-go v0.21.0 that its API does not show.
// Each file describes the client's behavior and its place in the code, how the library handles it,
// and what breaks when the client changes; a test for each file fails then. Of this repository it
// imports pkg/backoff only.
package clientquirks
