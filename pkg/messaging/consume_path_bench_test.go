package messaging

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"
)

// BenchmarkPathOfAMessage takes messages from where the underlying client hands them over to their
// acknowledgement: it is the library's own part of what receiving costs.
func BenchmarkPathOfAMessage(b *testing.B) {
	for _, order := range []Order{OrderKey, OrderPartition, OrderTotal} {
		b.Run(string(order), func(b *testing.B) {
			all := openConsumers(b, "pulsar://127.0.0.1:1")
			all.consumers = &feedingClient{Client: all.consumers, messages: b.N}
			cfg := DefaultConsumerConfig()
			cfg.Topics, cfg.Subscription, cfg.Type, cfg.Order = []string{"t"}, "sub", Exclusive, order
			c, err := all.New(cfg)
			require.NoError(b, err)
			ctx, stop := context.WithCancel(context.Background())
			var handled atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			require.NoError(b, c.Run(ctx, func(context.Context, *Delivery) error {
				if handled.Add(1) == int64(b.N) {
					b.StopTimer()
					stop()
				}
				return nil
			}))
		})
	}
}

// feedingClient makes consumers that deliver batches of 100 messages of 200 bytes.
type feedingClient struct {
	pulsar.Client

	messages int
}

func (*feedingClient) TopicPartitions(topic string) ([]string, error) { return []string{topic}, nil }

func (f *feedingClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	c := &feedingConsumer{closed: make(chan struct{})}
	go c.feed(f.messages, o.Topic, o.MessageChannel, o.Interceptors[0])
	return c, nil
}

type feedingConsumer struct {
	ackedConsumer

	closed chan struct{}
}

func (c *feedingConsumer) Close() { close(c.closed) }

func (c *feedingConsumer) feed(n int, topic string, ch chan<- pulsar.ConsumerMessage, to pulsar.ConsumerInterceptor) {
	const size = 100
	payload, keys := make([]byte, 200), make([]string, 1000)
	for i := range keys {
		keys[i] = "key" + strconv.Itoa(i)
	}
	for done := 0; done < n; done += size {
		batch := make([]feedingMessage, size)
		for i := range batch {
			batch[i].id = &feedingID{pulsar.NewMessageID(1, int64(done/size), int32(i), 0), size}
			batch[i].topic, batch[i].key, batch[i].payload = topic, keys[(done+i)%len(keys)], payload
			to.BeforeConsume(pulsar.ConsumerMessage{Consumer: c, Message: &batch[i]})
		}
		for i := range batch {
			select {
			case ch <- pulsar.ConsumerMessage{Consumer: c, Message: &batch[i]}:
			case <-c.closed:
				return
			}
		}
	}
}

type feedingID struct {
	pulsar.MessageID

	size int32
}

func (id *feedingID) BatchSize() int32 { return id.size }

// feedingMessage is a message of a batch.
type feedingMessage struct {
	pulsar.Message

	id         pulsar.MessageID
	topic, key string
	payload    []byte
}

func (m *feedingMessage) ID() pulsar.MessageID                          { return m.id }
func (m *feedingMessage) Topic() string                                 { return m.topic }
func (m *feedingMessage) Key() string                                   { return m.key }
func (m *feedingMessage) Payload() []byte                               { return m.payload }
func (*feedingMessage) OrderingKey() string                             { return "" }
func (*feedingMessage) Properties() map[string]string                   { return nil }
func (*feedingMessage) PublishTime() time.Time                          { return time.Time{} }
func (*feedingMessage) EventTime() time.Time                            { return time.Time{} }
func (*feedingMessage) ProducerName() string                            { return "" }
func (*feedingMessage) GetReplicatedFrom() string                       { return "" }
func (*feedingMessage) RedeliveryCount() uint32                         { return 0 }
func (*feedingMessage) IsNullValue() bool                               { return false }
func (*feedingMessage) GetEncryptionContext() *pulsar.EncryptionContext { return nil }
