// Package kafka reads messages from and writes messages to Apache Kafka.
//
// A message that is read goes from the consumer group's claim of its partition (claim.go) through
// that partition's fetchBuffer (fetchbuffer.go) into the pipeline. The buffer pauses the partition
// while the pipeline takes no more. The source marks the offset up to which the pipeline has stored
// messages, and commits only that. A message that is written goes through [Sink.Send] (sink.go)
// into one idempotent producer (producer.go). refusal.go decides whether a failure is final for the
// pipeline. The source uses IBM/sarama, the sink twmb/franz-go: docs/adr/0007-kafka-driver.md says
// why.
package kafka
