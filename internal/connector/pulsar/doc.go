// Package pulsar is the source and the sink for Apache Pulsar, on pkg/messaging. Pigeonhole uses
// both, Eventbridge the sink.
//
// source.go takes messages from a subscription to lanes, and partition.go acknowledges them once the
// lanes have stored them. sink.go publishes messages of lanes to topics. exact.go and writer.go do
// that under effectively_once.
package pulsar
