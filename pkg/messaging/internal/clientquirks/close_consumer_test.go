package clientquirks_test

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// The client's Close alone would wait for the operation timeout: nobody takes the delivered
// messages.
func TestConsumerWithAFullQueueIsClosed(t *testing.T) {
	s := start(t)
	c := connect(t, s.URL(), nil)
	for range 100 { // one message in each entry: a batch would be one delivery
		s.Publish(topic, fakebroker.Message{Payload: []byte("m")})
	}
	ch := make(chan pulsar.ConsumerMessage)
	consumer := subscribe(t, c, func(o *pulsar.ConsumerOptions) { o.MessageChannel, o.ReceiverQueueSize = ch, 10 })
	<-ch
	clientquirks.CloseReceiving(consumer, ch)
	eventually(t, "the broker knows", func() bool { return len(s.Consumers(topic, "sub")) == 0 })
}
