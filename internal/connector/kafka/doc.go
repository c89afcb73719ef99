// Package kafka reads messages from Apache Kafka and writes messages to it.
//
// The source reads a partition in claim.go: from the consumer group's claim through a fetchBuffer
// into the pipeline. It commits the offset up to which the pipeline has stored messages. The sink
// writes through one idempotent producer (sink.go). The source uses IBM/sarama and the sink
// twmb/franz-go (docs/adr/0007-kafka-driver.md); outside of test, only this package imports these.
// It imports no other system and no service.
package kafka
