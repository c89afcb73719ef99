package pigeonhole

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/systems/kafka"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// there and back are two Pigeonholes, the one behind the other.
func thereAndBack(t *testing.T, from system, source string, via system, end system, to string) {
	t.Helper()
	between := via.place(t)
	run(t, "name: there\n"+one("there", from.source(source), via.sink(), between))
	run(t, "name: back\n"+one("back", via.source(between), end.sink(), to))
}

// some receives n things, or fails.
func some[T any](t testing.TB, n int, from <-chan T) []T {
	t.Helper()
	var all []T
	for deadline := time.After(await.Patience); len(all) < n; {
		select {
		case one := <-from:
			all = append(all, one)
		case <-deadline:
			require.Len(t, all, n)
		}
	}
	return all
}

// send stores records as they are.
func (k *kafkaSystem) send(t testing.TB, records ...*sarama.ProducerMessage) {
	t.Helper()
	cfg := kafka.Durable()
	cfg.Producer.MaxMessageBytes = 20 << 20
	producer, err := sarama.NewSyncProducer(k.server.Brokers(), cfg)
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.SendMessages(records))
}

// records returns the first n of a topic.
func (k *kafkaSystem) records(t testing.TB, topic string, n int) []*sarama.ConsumerMessage {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	got, done := make(chan *sarama.ConsumerMessage, 1000), make(chan error, 1)
	go func() {
		done <- kafka.Read(ctx, k.server.Brokers(), topic, nil, func(m *sarama.ConsumerMessage) {
			select {
			case got <- m:
			case <-ctx.Done():
			}
		})
	}()
	defer func() { stop(); require.NoError(t, <-done) }()
	return some(t, n, got)
}

// deliveries takes n messages from a queue.
func (r *rabbitSystem) deliveries(t testing.TB, queue string, n int) (all []amqp.Delivery) {
	t.Helper()
	require.NoError(t, r.with(func(c *amqp.Channel) error {
		got, err := c.Consume(queue, "", true, false, false, false, nil)
		if err == nil {
			all = some(t, n, got)
		}
		return err
	}))
	return all
}

// deliveries reads n messages of a topic.
func (p *pulsarSystem) deliveries(t testing.TB, topic string, n int) []*messaging.Delivery {
	t.Helper()
	client := p.client(t)
	defer client.Close(context.Background())
	reading := messaging.DefaultConsumerConfig()
	reading.Topics, reading.Subscription = []string{topic}, "deliveries"
	consumer, err := client.Consumer(reading)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan *messaging.Delivery, 1000), make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
			kept := *d
			kept.Payload, kept.Properties = bytes.Clone(d.Payload), maps.Clone(d.Properties)
			got <- &kept
			return nil
		})
	}()
	defer func() { cancel(); assert.NoError(t, <-done) }()
	return some(t, n, got)
}

// oddRecords are what a topic of Kafka may hold, each with a header that tells which it
// is.
func oddRecords(topic string) []*sarama.ProducerMessage {
	h := func(name, value string) sarama.RecordHeader {
		return sarama.RecordHeader{Key: []byte(name), Value: []byte(value)}
	}
	text := func(s string) sarama.Encoder { return sarama.StringEncoder(s) }
	var many []sarama.RecordHeader
	for i := range 5000 {
		many = append(many, h(fmt.Sprintf("h%d", (i*7919)%5000), "v"))
	}
	records := []*sarama.ProducerMessage{
		{Key: text("key"), Value: text("value")},
		{Value: text("no key")},
		{Key: text("tombstone")},
		{},
		{Key: text(""), Value: text("")},
		{Key: text("\xff\x00key"), Value: text("\xfe\x00value")},
		{Key: text("schlüssel"), Value: text("grün")},
		{Key: text("h"), Value: text("twice"), Headers: []sarama.RecordHeader{h("b", "1"), h("a", "2"), h("b", "3"), h("a", "2")}},
		{Key: text("h"), Value: text("null and empty"), Headers: []sarama.RecordHeader{{Key: []byte("null")}, h("empty", "")}},
		{Key: text("h"), Value: text("binary"), Headers: []sarama.RecordHeader{h("binary", "\x00\xff\xfe"), h("\xffname", "x"), h("", "no name"), h("a\nb", "line")}},
		{Key: text("h"), Value: text("long names"), Headers: []sarama.RecordHeader{h(strings.Repeat("n", 300), "x"), h("x-death", "y")}},
		{Key: text("h"), Value: text("our own names"), Headers: []sarama.RecordHeader{h(message.Prefix+"other", "x")}},
		{Key: text("h"), Value: text("many headers"), Headers: many},
	}
	for i, r := range records {
		r.Topic, r.Timestamp = topic, time.UnixMilli(1_700_000_000_123+int64(i)*1001)
		r.Headers = append(r.Headers, h("id", fmt.Sprint(i)))
	}
	return records
}

// shown is a record as text, nil and empty told apart, without Pigeonhole's entries.
func shown(key, value []byte, headers []string, at time.Time) string {
	bytesOf := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("key %s\nvalue %s\ntime %d\n%s", bytesOf(key), bytesOf(value), at.UnixMilli(), strings.Join(headers, "\n"))
}

func shownHeader(name string, value []byte) (text string, own bool) {
	own = message.IsReserved(name) && name != message.Prefix+"other"
	if value == nil {
		return fmt.Sprintf("%q null", name), own
	}
	return fmt.Sprintf("%q %q", name, value), own
}

func encoded(t testing.TB, e sarama.Encoder) []byte {
	t.Helper()
	if e == nil {
		return nil
	}
	b, err := e.Encode()
	require.NoError(t, err)
	if b == nil {
		b = []byte{}
	}
	return b
}

// TestRecordsComeBackEqual: key, value, headers in their order, and the time, from Kafka
// by way of each system.
func TestRecordsComeBackEqual(t *testing.T) {
	t.Parallel()
	kafka := newKafka(stack.Kafka(t))
	for name, via := range map[string]system{"pulsar": newPulsar(stack.Pulsar(t)), "rabbitmq": newRabbit(stack.RabbitMQ(t)), "kafka": kafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := kafka.place(t), kafka.place(t)
			thereAndBack(t, kafka, source, via, kafka, target)
			sent := oddRecords(source)
			kafka.send(t, sent...)
			want, got := map[string]string{}, map[string]string{}
			for _, r := range sent {
				var headers []string
				for _, h := range r.Headers {
					text, _ := shownHeader(string(h.Key), h.Value)
					headers = append(headers, text)
				}
				want[headers[len(headers)-1]] = shown(encoded(t, r.Key), encoded(t, r.Value), headers, r.Timestamp)
			}
			for _, r := range kafka.records(t, target, len(sent)) {
				var headers []string
				for _, h := range r.Headers {
					if text, own := shownHeader(string(h.Key), h.Value); !own {
						headers = append(headers, text)
					}
				}
				got[headers[len(headers)-1]] = shown(r.Key, r.Value, headers, r.Timestamp)
			}
			for id := range want {
				assert.Equal(t, want[id], got[id])
			}
		})
	}
}

// TestDeliveriesComeBackEqual: properties and tables of AMQP, by way of each system.
func TestDeliveriesComeBackEqual(t *testing.T) {
	t.Parallel()
	rabbit := newRabbit(stack.RabbitMQ(t))
	at := time.Unix(1_700_000_000, 0)
	sent := []amqp.Publishing{
		{Body: []byte("bare")},
		{Body: []byte{}, DeliveryMode: amqp.Transient},
		{
			Body: []byte("\xff\x00"), DeliveryMode: amqp.Persistent, ContentType: "text/plain; charset=UTF-8", ContentEncoding: "gzip", Priority: 7,
			CorrelationId: "c&=%;", ReplyTo: "answers", Expiration: "3600000", MessageId: "m-1", Timestamp: at, Type: "t", UserId: "guest", AppId: "grün",
		},
		{Body: []byte("headers"), Headers: amqp.Table{
			"text": "grün", "empty": "", "yes": true, "no": false, "byte": int8(-3), "short": int16(-300), "int": int32(7), "long": int64(1) << 60,
			"float": float32(1.5), "double": 2.25, "binary": []byte{0, 255}, "void": nil, "at": at, "decimal": amqp.Decimal{Scale: 2, Value: 314},
			"list":  []any{"a", int32(1), amqp.Table{"deep": []any{true, nil}}},
			"table": amqp.Table{"a": "b", "n": int64(1), "inner": amqp.Table{"x": []byte{1}}},
		}},
	}
	for name, via := range map[string]system{"pulsar": newPulsar(stack.Pulsar(t)), "kafka": newKafka(stack.Kafka(t)), "rabbitmq": rabbit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := rabbit.place(t), rabbit.place(t)
			thereAndBack(t, rabbit, source, via, rabbit, target)
			require.NoError(t, rabbit.with(func(c *amqp.Channel) error {
				require.NoError(t, c.Confirm(false))
				for _, p := range sent {
					d, err := c.PublishWithDeferredConfirm("", source, true, false, p)
					require.NoError(t, err)
					require.True(t, d.Wait())
				}
				return nil
			}))
			got := map[string]amqp.Delivery{}
			for _, d := range rabbit.deliveries(t, target, len(sent)) {
				got[string(d.Body)] = d
			}
			for _, want := range sent {
				d, there := got[string(want.Body)]
				require.True(t, there, "%q", want.Body)
				for name := range d.Headers {
					if message.IsReserved(name) {
						delete(d.Headers, name)
					}
				}
				if len(d.Headers) == 0 {
					d.Headers = nil
				}
				assert.True(t, d.Timestamp.Equal(want.Timestamp), "%s", d.Timestamp)
				if v, ok := d.Headers["at"].(time.Time); ok {
					assert.True(t, v.Equal(at))
					d.Headers["at"] = at
				}
				assert.Equal(t, want, amqp.Publishing{
					Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
					CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId, Timestamp: want.Timestamp,
					Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
				})
			}
		})
	}
}

// TestPropertiesComeBackEqual: from Pulsar by way of each system.
func TestPropertiesComeBackEqual(t *testing.T) {
	t.Parallel()
	pulsar := newPulsar(stack.Pulsar(t))
	for name, via := range map[string]system{"kafka": newKafka(stack.Kafka(t)), "rabbitmq": newRabbit(stack.RabbitMQ(t)), "pulsar": pulsar} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := pulsar.place(t), pulsar.place(t)
			thereAndBack(t, pulsar, source, via, pulsar, target)
			many := map[string]string{}
			for i := range 5000 {
				many[fmt.Sprint("h", i)] = "v"
			}
			sent := []*messaging.Record{
				{Key: "key", Payload: []byte("value"), EventTime: time.UnixMilli(1_700_000_000_123)},
				{Payload: []byte("no key")},
				{Key: "tombstone", Properties: map[string]string{"a": "b"}},
				{Key: "empty", Payload: []byte{}},
				{Key: "schlüssel", Payload: []byte("\xff\x00"), Properties: map[string]string{"name": "grün", "größe": "1", "empty": "", "a\nb": "line"}},
				{Key: "many", Payload: []byte("many"), Properties: many},
			}
			for i, r := range sent {
				if r.Properties == nil {
					r.Properties = map[string]string{}
				}
				r.Properties["id"] = fmt.Sprint(i)
			}
			client := pulsar.client(t)
			defer client.Close(context.Background())
			publisher, err := client.Publisher(t.Context(), source, messaging.Ops())
			require.NoError(t, err)
			require.NoError(t, publisher.Publish(t.Context(), sent...))
			got := map[string]*messaging.Delivery{}
			for _, d := range pulsar.deliveries(t, target, len(sent)) {
				got[d.Properties["id"]] = d
			}
			for id, want := range sent {
				d := got[fmt.Sprint(id)]
				require.NotNil(t, d, id)
				maps.DeleteFunc(d.Properties, func(name, _ string) bool { return message.IsReserved(name) })
				assert.Equal(t, want.Properties, d.Properties)
				assert.Equal(t, want.Key, d.Key)
				assert.Equal(t, want.Payload, d.Payload, "%d", id)
				assert.True(t, want.EventTime.Equal(d.EventTime), "%s", d.EventTime)
			}
		})
	}
}
