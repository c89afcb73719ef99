package clientquirks

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
)

// A producer closes itself when the broker refuses it on reconnecting: fenced, topic terminated
// or not found (producer_partition.go, doClose). It then closes the channels that sends, flushes
// and Close write to, so a call at the same moment panics. What is in its batch builder gets no
// outcome. If the client stops closing its channels, the recovers may go; if it reports the
// builder's messages, IsClosed may go.

// Send sends msg. A panic of the client counts as a closed producer.
func Send(raw pulsar.Producer, msg *pulsar.ProducerMessage, receipt func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	defer func() {
		if v := recover(); v != nil {
			receipt(nil, nil, fmt.Errorf("%w: %v", pulsar.ErrProducerClosed, v))
		}
	}()
	raw.SendAsync(context.Background(), msg, receipt)
}

// Flush flushes raw. The messages' own outcomes show what failed.
func Flush(ctx context.Context, raw pulsar.Producer) {
	defer func() { _ = recover() }()
	_ = raw.FlushWithCtx(ctx)
}

// CloseProducer closes raw. The operation timeout bounds the close request.
func CloseProducer(raw pulsar.Producer) {
	defer func() { _ = recover() }()
	raw.Close()
}

// IsClosed reports whether the producer has closed itself: outcomes alone do not show it. A send
// with an ended context goes no further than the check of the producer's state
// (internalSendAsync).
func IsClosed(raw pulsar.Producer) (closed bool) {
	raw.SendAsync(Canceled(), &pulsar.ProducerMessage{}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		closed = errors.Is(err, pulsar.ErrProducerClosed)
	})
	return closed
}

// ObserveReconnects calls lost when the producer's connection ends and back when the producer is
// connected again. A producer reconnects by itself and reports nothing. It asks for a back-off
// policy when, and only when, its connection has ended, and resets the policy when it is connected
// again (producer_partition.go, reconnectToBroker). If the client changes, disconnects are not
// counted, and an owner does not notice that it has lost its producer.
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
