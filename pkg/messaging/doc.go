// Package messaging is a client library for Apache Pulsar. [Dial] makes a [Client] for one cluster;
// its methods open a [Publisher], a [Consumer], a [Reader] or an [EntryWriter], redrive dead
// letters, and manage topics and namespaces. Queues are bounded in records and in bytes.
//
// Delivery is at least once, and in order per partition; an [EntryWriter] stores each position of
// its source once. docs/guarantees.md has every promise with its conditions. All exported types are
// safe for concurrent use unless they say otherwise. Of this repository the library imports
// packages of pkg only. No other package of pkg, internal and cmd imports pulsar-client-go.
package messaging
