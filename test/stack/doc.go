// Package stack runs real servers as child processes: Pulsar, Kafka, RabbitMQ, Redis, Prometheus,
// vmagent and nutcracker. They listen on 127.0.0.1 and keep their files in the user's cache
// folder. It needs Linux.
//
// [Pulsar], [Geo], [Kafka], [RabbitMQ], [Redis] and [RedisZones] return servers that all test
// packages of a checkout share. Functions with the prefix Private return a server for one test,
// which may kill and restart it. The command test/stack/cmd/stack starts servers for development.
// The packages install, process and systems/owned are below this one and do not import it.
package stack
