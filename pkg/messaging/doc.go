// Package messaging is a tuned Apache Pulsar client. Publishers say when a record is stored;
// what a consumer's handler returns says what becomes of the message.
//
// [Dial] makes a [Client], one for each cluster. From it come:
//
//   - [Client.Publisher] writes records to one topic. Begin with the profile [Business] or
//     [Ops].
//   - [Client.Consumer] reads a subscription. Begin with [DefaultConsumerConfig].
//   - [Client.Reader] reads a topic from a position that the caller keeps.
//   - [Client.EntryWriter] stores what a source numbers, each number once.
//   - [Client.Redrive] publishes dead letters to the topics that they came from.
//   - [Client.Topic] and [Client.Namespace] manage topics, subscriptions and namespaces over the
//     brokers' admin API.
//
// The package uses pulsar-client-go and adds to it:
//
//   - [Publisher.Publish] returns nil only when the broker has acknowledged every record.
//     Concurrent callers share entries (group commit); a lone record is sent at once.
//   - Queues are bounded in records and in bytes. A full queue blocks the caller (until its
//     context ends) or fails the record at once.
//   - A publisher that shares its topic replaces a producer that the broker closes or fences, and
//     sends again, in order, what is not acknowledged. A publisher that owns its topic does not:
//     see [Ownership]. Each accepted record gets its outcome once.
//   - A [Consumer] is connected inside [Consumer.Run], [Consumer.RunAsync] or [Consumer.Drain]
//     only. When they return it holds no message: another consumer of the subscription gets all
//     that is not acknowledged.
//   - Bounds count bytes as well as messages, so a backlog of large messages cannot exhaust the
//     memory. docs/guarantees.md says where the bound is exceeded for a time.
//
// Delivery is at least once: after a failure a record may be stored twice, and a message may be
// handled twice. An [EntryWriter] stores each position of its source once. Order holds per
// partition, and so per key; [Order] says what a consumer keeps of it. docs/guarantees.md has the
// conditions and limits of each promise.
//
// All exported types are safe for concurrent use unless they say otherwise.
package messaging
