// Package pulsaradmin is a client of Pulsar's admin REST API.
package pulsaradmin
