// Package rabbitmq takes messages from RabbitMQ's queues and streams, and publishes messages to its
// exchanges, over AMQP 0-9-1. It does this on amqp091-go, which no other package outside of test
// imports. It imports no other system and no service.
//
// A delivery tag belongs to one channel of one connection. When either ends, the package abandons
// its pipelines, and the broker delivers the messages again that they had not committed. The
// package does not use the recovery of amqp091-go, which reuses delivery tags: a late
// acknowledgement could then acknowledge another message.
package rabbitmq
