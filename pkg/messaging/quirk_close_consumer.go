package messaging

import (
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
)

// closeReceiving closes a consumer, and meanwhile takes what it delivers to ch: the broker's answer
// to the closing comes behind the messages that are on their way, and when the underlying queue is
// full the connection reads no further (consumer_partition.go, MessageReceived). With it every
// consumer and publisher of the connection would stand still.
func closeReceiving(raw interface{ Close() }, ch <-chan pulsar.ConsumerMessage) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		raw.Close()
	}()
	for {
		select {
		case <-ch: // the broker delivers it again
		case <-closed:
			return
		}
	}
}

// closeWatch is told when the broker refuses an underlying consumer for good.
type closeWatch struct {
	once   sync.Once
	closed chan struct{}
	cause  error // set before closed is
}

// The underlying client calls it as an interceptor.
var (
	_ pulsar.ConsumerInterceptor      = (*closeWatch)(nil)
	_ pulsar.ConsumerCloseInterceptor = (*closeWatch)(nil)
)

func newCloseWatch() *closeWatch { return &closeWatch{closed: make(chan struct{})} }

func (w *closeWatch) BeforeConsume(pulsar.ConsumerMessage)                   {}
func (w *closeWatch) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (w *closeWatch) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// OnConsumerClose is told why the underlying consumer closed itself, nil when we closed it.
func (w *closeWatch) OnConsumerClose(_ pulsar.Consumer, err error) {
	if err != nil {
		w.once.Do(func() {
			w.cause = err
			close(w.closed)
		})
	}
}

func (w *closeWatch) err() error { return fmt.Errorf("subscription closed by the broker: %w", w.cause) }
