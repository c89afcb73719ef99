// Package rabbitmq takes messages from RabbitMQ's queues and streams, and publishes messages to its
// exchanges, over AMQP 0-9-1.
//
// A message from a queue goes connection -> channel -> [Source] -> pipeline, and the pipeline's
// watermark comes back as one multiple acknowledgement on the channel that delivered it. A message to
// RabbitMQ goes pipeline -> [Sink.Send] -> publisher, which waits for the broker's confirm.
//
// The package does not use the client library's own recovery, which reuses delivery tags: a late
// acknowledgement could hit another message and lose it. Here a delivery tag belongs to one channel of
// one connection. When either ends, the package abandons its pipelines, and the broker delivers again
// what they had not committed.
package rabbitmq
