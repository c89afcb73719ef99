package clientquirks

import (
	"github.com/apache/pulsar-client-go/pulsar"
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
)

// A producer reconnects by itself and reports nothing. It asks for a back-off policy when, and
// only when, its connection has ended (producer_partition.go, reconnectToBroker). If the client
// changes, an owner does not notice that it has lost its producer.

// NoReconnect makes the end of the producer's connection its end, which it reports to lost. A
// producer that reconnects would send all that it holds again, perhaps after what another
// publisher has written. The broker prevents that only in part: a shared producer does not raise
// the topic epoch, and one that waits for exclusive access is let in whatever its epoch.
func NoReconnect(o *pulsar.ProducerOptions, lost func()) {
	o.MaxReconnectToBroker = new(uint)
	o.BackOffPolicyFunc = func() rawbackoff.Policy {
		lost()
		return NewBackoff()
	}
}
