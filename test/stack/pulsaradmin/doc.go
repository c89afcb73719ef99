// Package pulsaradmin is a client of Pulsar's admin REST API. Of test/stack it imports only
// process.
package pulsaradmin
