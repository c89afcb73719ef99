// Package pulsar is Pigeonhole's source and sink for Apache Pulsar, on pkg/messaging.
//
// source.go is the way of a message from a subscription to a lane and of its position
// back to the acknowledgement; sink.go the way from a lane to a topic; exact.go that way
// under effectively_once.
package pulsar
