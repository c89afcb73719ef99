// Package clientquirks holds what the library knows about the inside of pulsar-client-go v0.21.0:
// what the client does and where, what we do about it, and what breaks when the client changes. A
// test fails for each when that happens. The package imports only leaves of the library.
package clientquirks
