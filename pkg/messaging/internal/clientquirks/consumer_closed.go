package clientquirks

import (
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
)

// CloseWatch is an interceptor that reports that the broker refused a consumer for good. The
// client then closes the consumer and calls its interceptor with the cause
// (consumer_partition.go, reconnectToBroker, isNonRetriableSubscribeError). Receiving just gets
// nothing more. If the client does not call the interceptor, a consumer waits without limit.
type CloseWatch struct {
	once   sync.Once
	Closed chan struct{}
	cause  error // set before Closed is closed
}

var (
	_ pulsar.ConsumerInterceptor      = (*CloseWatch)(nil)
	_ pulsar.ConsumerCloseInterceptor = (*CloseWatch)(nil)
)

// NewCloseWatch returns an interceptor for one consumer.
func NewCloseWatch() *CloseWatch { return &CloseWatch{Closed: make(chan struct{})} }

// BeforeConsume does nothing.
func (w *CloseWatch) BeforeConsume(pulsar.ConsumerMessage) {}

// OnAcknowledge does nothing.
func (w *CloseWatch) OnAcknowledge(pulsar.Consumer, pulsar.MessageID) {}

// OnNegativeAcksSend does nothing.
func (w *CloseWatch) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// OnConsumerClose gets the cause, nil when we closed the consumer.
func (w *CloseWatch) OnConsumerClose(_ pulsar.Consumer, err error) {
	if err != nil {
		w.once.Do(func() {
			w.cause = err
			close(w.Closed)
		})
	}
}

// Err returns the cause once Closed is closed.
func (w *CloseWatch) Err() error { return fmt.Errorf("subscription closed by the broker: %w", w.cause) }
