// Package rabbitmq takes messages from RabbitMQ's queues and streams, and publishes messages to its exchanges, over AMQP 0-9-1.
//
// A message from a queue goes connection -> channel -> [Source] (source.go) -> lane, and the lane's watermark comes back as one multiple
// acknowledgement on the very channel that delivered it. A message to RabbitMQ goes lane -> [Sink.Send] (sink.go) -> outlet (outlet.go), which
// publishes it on one channel and waits there for the broker's confirm.
//
// The client library's own recovery is not used: it gives delivery tags a new meaning under the same channel, so that a late acknowledgement
// could be for another message, which would then be lost. Here a delivery tag belongs to one channel of one connection. When either ends, its
// lanes are abandoned, and what they had not committed is delivered again.
package rabbitmq
