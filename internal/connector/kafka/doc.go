// Package kafka reads messages from and writes messages to Apache Kafka.
//
// A source reads a partition in claim.go: from the consumer group's claim through a fetchBuffer into
// the pipeline. It commits only the offset up to which the pipeline has stored messages. A sink
// writes through one idempotent producer (sink.go). The source uses IBM/sarama, the sink
// twmb/franz-go: docs/adr/0007-kafka-driver.md says why.
package kafka
