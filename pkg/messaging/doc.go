// Package messaging is a tuned Apache Pulsar client: publishers that say when a
// record is durable, and consumers whose handler's return value is the verdict.
//
// It stands on pulsar-client-go and removes the ways in which that client is
// commonly misused:
//
//   - [Publisher.Publish] returns nil only when the broker has acknowledged every
//     record. Concurrent callers share batches (group commit); a lone caller
//     never waits for company.
//   - Queues are bounded in records and in bytes. A full queue blocks the caller
//     (with its context) or fails it at once; it never grows.
//   - Producers that the broker closes or fences are recreated, and what had been
//     accepted is sent again in its order. Nothing accepted is dropped silently.
//   - A [Consumer] exists inside [Consumer.Run] or [Consumer.Drain] only. When they
//     return, every handler has finished and no message is pinned in a queue.
//   - Delivery budgets count bytes as well as messages, so a backlog of large
//     messages cannot exhaust memory.
//
// Delivery is at least once: after a failure a record may be stored twice, and a
// message may be handled twice. Order holds per partition and so per key.
//
// All exported types are safe for concurrent use unless they say otherwise.
package messaging
