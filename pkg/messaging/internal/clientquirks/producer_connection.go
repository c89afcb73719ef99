package clientquirks

import (
	"github.com/apache/pulsar-client-go/pulsar"
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
)

// A producer reconnects by itself and reports nothing. It asks for a back-off policy when, and
// only when, its connection has ended, and resets the policy when it is connected again
// (producer_partition.go, reconnectToBroker). If the client changes, disconnects are not counted,
// and an owner does not notice that it has lost its producer.

// ObserveReconnects calls lost when the producer's connection ends and back when the producer is
// connected again.
func ObserveReconnects(o *pulsar.ProducerOptions, lost, back func()) {
	o.BackOffPolicyFunc = func() rawbackoff.Policy {
		lost()
		return observedBackoff{NewBackoff(), back}
	}
}

// NoReconnect makes the end of the producer's connection its end, which it reports to lost. A
// producer that reconnects would send all that it holds again, perhaps after what another
// publisher has written. The broker prevents that only in part: a shared producer does not raise
// the topic epoch, and one that waits for exclusive access is let in whatever its epoch.
func NoReconnect(o *pulsar.ProducerOptions, lost func()) {
	o.MaxReconnectToBroker = new(uint)
	ObserveReconnects(o, lost, func() {})
}

type observedBackoff struct {
	rawbackoff.Policy

	back func()
}

func (b observedBackoff) Reset() {
	b.back()
	b.Policy.Reset()
}
