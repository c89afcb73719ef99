// Package pulsar is the source and the sink for Apache Pulsar, on pkg/messaging. Pigeonhole uses
// both, Eventbridge the sink.
//
// source.go takes messages from a subscription to pipelines, and partition.go acknowledges them
// once the pipelines have stored them. sink.go publishes messages of pipelines to topics. exact.go
// and writer.go do that under effectively_once.
package pulsar
