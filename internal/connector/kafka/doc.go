// Package kafka reads messages from and writes messages to Apache Kafka.
//
// A message read goes from the consumer group's claim of its partition (claim.go) through that partition's intake (intake.go), which pauses the
// partition while the lane takes no more, into the lane. What the lane has seen stored is marked, and only that is committed. A message written
// goes through Send (sink.go) into one idempotent producer (producer.go), whose outcome becomes the lane's (verdict.go). Reading stands on IBM/sarama,
// writing on twmb/franz-go: docs/adr/0007-kafka-driver.md says why.
package kafka
