// Package connector is the room of what moves messages from and to other systems: message (the neutral form and its
// mapping), lane (order, bounds and watermark of what is read), and kafka, rabbitmq and pulsar (sources and sinks).
// Pigeonhole's routes stand on all of it, Eventbridge's targets on the sinks.
package connector
