package clientquirks

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

// A producer closes itself when the broker refuses it on reconnecting: fenced, topic terminated
// or not found (producer_partition.go, doClose). It then closes the channels that sends, flushes
// and Close write to, so a call at the same moment panics. Records in its batch builder get no
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

// CloseProducer closes raw. The close request is bounded by the operation timeout.
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
