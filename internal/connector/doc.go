// Package connector holds what the connectors to Kafka, RabbitMQ and Pulsar share: the interfaces
// of sources and sinks, their options, health, metrics and TLS, and the backoff of reconnects.
// Pigeonhole's routes use sources and sinks, Eventbridge's targets use sinks. The package imports
// message and pipeline, but no system and no service.
package connector
