// Package connector holds what the connectors to Kafka, RabbitMQ and Pulsar share: the interfaces
// of sources and sinks, their options, health, metrics and TLS, and the backoff of reconnects.
//
// Below it are message (the neutral form of a message and its mappings), pipeline (order, bounds and
// watermark of the messages of a source's partition), and kafka, rabbitmq and pulsar (sources and
// sinks). Pigeonhole's routes use all of them. Eventbridge's targets use the sinks.
package connector
