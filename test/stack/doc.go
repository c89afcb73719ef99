// Package stack runs the real servers that Aviary talks to, as child processes of this machine:
// Apache Pulsar as one standalone broker or as two geo-replicated ones, Apache Kafka, RabbitMQ,
// Redis, alone or one per zone, and the programs Prometheus, vmagent and nutcracker.
//
// It has two users. The command test/stack/cmd/stack starts servers that outlive it, for
// development and benchmarks ("make stack-up", "make stack-down"). Tests ask for a server with
// [Pulsar], [Geo], [Kafka], [RabbitMQ], [Redis] or [RedisZones], which share one server between all
// test packages of a checkout and leave it running, or with the function of the same name that
// begins with Private: its server is the test's own, which may kill, pause and restart it, and goes
// with the test.
//
// Servers listen on 127.0.0.1 only. Downloads, data, logs and process ids live in the user's cache
// folder, never in the repository. Linux only: it reads /proc and relies on the parent-death
// signal.
package stack
