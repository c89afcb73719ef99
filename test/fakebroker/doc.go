// Package fakebroker is a small in-process server that speaks Pulsar's binary protocol, for tests of
// faults that a real broker cannot be made to show on demand: a receipt that never comes, a
// producer fenced on reconnect, one slow partition, a server-sent close command, a corrupted entry.
//
// It proves what our code does when the broker misbehaves. It proves nothing about the broker: a
// behaviour that matters is also tested against the real one, and this package never replaces such
// a test.
//
// # Use
//
//	s := fakebroker.Start(t)
//	s.CreateTopic("orders", 4)
//	hold := s.HoldReceipts("orders")
//	// ... produce with a client connected to s.URL() ...
//	require.NoError(t, hold.Wait(ctx, 1)) // the entry has arrived
//	hold.Release()                        // now its receipt goes out
//
// Every fault counts how often it struck and can be waited for, so no test needs to sleep. Topic
// arguments take a topic ("orders", all its partitions), one partition ("orders-partition-2"),
// short or full names, or "" for all topics.
//
// # Model
//
// A partition is an append-only log in memory. Entries are kept as the bytes the producer sent
// (checksum, metadata, payload) and dispatched unchanged. All state is behind one mutex, commands
// are handled one at a time, and each connection's answers leave through a queue of its own: a
// fault on one connection cannot block another.
//
// # Simplified
//
//   - One broker: lookups answer with this server. No TLS, no authentication (every CONNECT is accepted), no
//     transactions, no topic watchers, no compaction, no retention: entries stay until the server is closed.
//   - Delayed delivery (deliver_at_time) is ignored: entries are dispatched at once.
//   - Chunked messages are stored and dispatched chunk by chunk. Entries returns each chunk's payload as it was sent.
//   - Failover: the consumer that subscribed first is active; priorities and name order are ignored.
//   - Key_Shared: a key belongs to consumer hash(key) modulo the number of consumers. When a consumer comes or goes, a key
//     that moves waits, as at the broker, until what another consumer still has of it is acknowledged or given back.
//     Sticky ranges are ignored.
//   - Shared: round-robin over the consumers that have permits, entry by entry.
//   - Permits are counted as the broker counts them: an entry is dispatched while permits are above zero and takes as
//     many as it holds messages, so one batch may drive them below zero. There is no limit of unacknowledged messages.
//   - A consumer with the name of a connected one takes its place on Exclusive (the broker would check whether the old
//     connection lives). A producer replaces its namesake if both names are generated, or if it has the same producer id
//     and a higher epoch; otherwise it gets ProducerBusy.
//   - Access mode WaitForExclusive waits in line, and whoever waited is let in, also with an epoch that has been fenced:
//     so does the broker. A shared producer may connect while others wait.
//   - Acks of single messages of a batch (ack_set) are always honoured, as by a broker with
//     acknowledgmentAtBatchIndexLevelEnabled.
package fakebroker
