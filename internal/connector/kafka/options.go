package kafka

// system is the name of Kafka in a message's origin.
const system = "kafka"
