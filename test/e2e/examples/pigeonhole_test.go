package examples

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// message is what a consumer of Pigeonhole's messages prints.
type message struct {
	Key     any            `json:"key"`
	Value   any            `json:"value"`
	Headers [][2]any       `json:"headers"`
	Time    any            `json:"time"`
	Origin  map[string]any `json:"origin"`
	AMQP    map[string]any `json:"amqp"`
}

// data is bytes as the consumers print them.
func data(b []byte) any {
	switch {
	case b == nil:
		return nil
	case !utf8.Valid(b):
		return map[string]any{"base64": base64.StdEncoding.EncodeToString(b)}
	}
	return string(b)
}

// route runs a Pigeonhole from a source into a topic of three partitions, which it returns.
func route(t *testing.T, pulsar *stack.PulsarServer, source string) string {
	t.Helper()
	topic := pulsar.Topic(t, pulsar.Namespace(t), 3)
	file := filepath.Join(t.TempDir(), "pigeonhole.yaml")
	config := fmt.Sprintf("routes:\n- name: example\n  source: {%s}\n  sink: {pulsar: {url: %q}}\n  to: %q\n", source, pulsar.URL(), topic)
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	systems.Run(t, []string{"-config.file", file}, []string{"PIGEONHOLE_ADMIN_LISTEN=127.0.0.1:0"}).Address("admin")
	return topic
}

// checkMessages compares what the consumers print with what was sent. Messages are told apart by
// their last header.
func checkMessages(t *testing.T, pulsar *stack.PulsarServer, topic string, want []message) {
	t.Helper()
	inEach(t, t.TempDir(), "pigeonhole", func(t *testing.T, example []string) {
		t.Helper()
		lines := printed(t, example, len(want), "--url", pulsar.URL(), "--topic", topic, "--subscription", path.Base(t.Name()))
		got := map[any]message{}
		for _, line := range lines {
			var m message
			require.NoError(t, json.Unmarshal([]byte(line), &m), line)
			if assert.NotNil(t, m.Origin) {
				assert.NotEmpty(t, m.Headers, line)
				got[m.Headers[len(m.Headers)-1][1]] = m
			}
		}
		assert.Len(t, lines, len(want))
		for i, one := range want {
			assert.Equal(t, one, got["m"+strconv.Itoa(i)], "message %d", i)
		}
	})
}

// send stores records, which then have their partitions and offsets.
func send(t *testing.T, brokers []string, records []*sarama.ProducerMessage) {
	t.Helper()
	producer, err := sarama.NewSyncProducer(brokers, kafka.Durable())
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.SendMessages(records))
}

// TestPigeonholeConsumersOfKafka: records with all that they may have.
func TestPigeonholeConsumersOfKafka(t *testing.T) {
	t.Parallel()
	kafka, pulsar := stack.Kafka(t), stack.Pulsar(t)
	source := kafka.Topic(t, 2)
	h := func(pairs ...string) (all []sarama.RecordHeader) {
		for i := 0; i+1 < len(pairs); i += 2 {
			all = append(all, sarama.RecordHeader{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
		}
		return all
	}
	text := func(s string) sarama.Encoder { return sarama.StringEncoder(s) }
	records := []*sarama.ProducerMessage{
		{Key: text("key"), Value: text("value"), Headers: h("a", "1", "b", "grün")},
		{Value: text("no key")},
		{Key: text("tombstone")},
		{Key: text(""), Value: text("")},
		{Key: text("\xff\x00key"), Value: text("\xfe\x00value")},
		{Key: text("h"), Value: text("order"), Headers: h("e", "1", "b", "2", "c", "3", "d", "4", "a", "5")},
		{Key: text("h"), Value: text("twice"), Headers: h("b", "1", "a", "2", "b", "3", "a", "2")},
		{Key: text("h"), Value: text("null, empty, binary"), Headers: append(
			h("empty", "", "binary", "\x00\xff\xfe", "\xffname", "x", "", "no name", "c=,%;", "a,b=(c{%"), sarama.RecordHeader{Key: []byte("null")},
		)},
		{Key: text("h"), Value: text("beyond 16 bits"), Headers: h("\uffee", "first by its bytes", "😀", "second")},
		{Key: text("h"), Value: text("our own names"), Headers: h("pigeonhole.other", "x", "pigeonhole.origin", "y", "pigeonhole.key_encoding", "base64")},
	}
	var many []string
	for i := range 500 {
		many = append(many, fmt.Sprintf("h%d", (i*7919)%500), strconv.Itoa(i))
	}
	records = append(records, &sarama.ProducerMessage{Key: text("h"), Value: text("many"), Headers: h(many...)})
	for i, r := range records {
		r.Topic, r.Timestamp = source, time.UnixMilli(1_700_000_000_123+int64(i))
		r.Headers = append(r.Headers, h("z", "m"+strconv.Itoa(i))...)
	}
	send(t, kafka.Brokers(), records)

	admin, err := sarama.NewClusterAdmin(kafka.Brokers(), sarama.NewConfig())
	require.NoError(t, err)
	defer admin.Close()
	described, err := admin.DescribeTopics([]string{source})
	require.NoError(t, err)
	id := base64.RawURLEncoding.EncodeToString(described[0].Uuid[:])
	encoded := func(e sarama.Encoder) any {
		if e == nil {
			return nil
		}
		b, err := e.Encode()
		require.NoError(t, err)
		return data(append([]byte{}, b...))
	}
	var want []message
	for _, r := range records {
		m := message{
			Key: encoded(r.Key), Value: encoded(r.Value), Time: float64(r.Timestamp.UnixMilli()), Origin: map[string]any{
				"system": "kafka", "cluster": "kafka", "topic": source, "partition": float64(r.Partition), "offset": float64(r.Offset), "id": id,
			},
		}
		for _, header := range r.Headers {
			m.Headers = append(m.Headers, [2]any{data(append([]byte{}, header.Key...)), data(header.Value)})
		}
		want = append(want, m)
	}
	topic := route(t, pulsar, fmt.Sprintf("kafka: {brokers: [%q], group: %s-group, topics: [%s]}", kafka.Brokers()[0], source, source))
	t.Run("all", func(t *testing.T) { checkMessages(t, pulsar, topic, want) })
}

// TestPigeonholeConsumersOfRabbitMQ: properties, and headers of every type.
func TestPigeonholeConsumersOfRabbitMQ(t *testing.T) {
	t.Parallel()
	rabbit, pulsar := stack.RabbitMQ(t), stack.Pulsar(t)
	queue := rabbit.Name(t)
	require.NoError(t, rabbitmq.Declare(rabbit.URL(), queue))
	defer func() { assert.NoError(t, rabbitmq.Delete(rabbit.URL(), queue)) }()
	at := time.Unix(1_700_000_000, 0)
	for _, p := range []amqp.Publishing{
		{Body: []byte("bare"), Headers: amqp.Table{"z": "m0"}},
		{
			Body: []byte("\xff\x00"), Headers: amqp.Table{"z": "m1"}, DeliveryMode: amqp.Persistent, Priority: 7,
			ContentType: "text/plain; charset=UTF-8", CorrelationId: "c&=%;", MessageId: "m;1", AppId: "grün", Timestamp: at,
		},
		{Body: []byte{}, Headers: amqp.Table{
			"z": "m2", "text": "grün", "yes": true, "int": int32(-7), "long": int64(1) << 60, "double": 2.25, "binary": []byte{0, 255}, "readable": []byte("text"),
			"void": nil, "at": at, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "list": []any{"a,b", int32(1), amqp.Table{"deep": []any{true, nil}}},
			"table": amqp.Table{"a": "b", "n": int64(1)},
		}},
	} {
		require.NoError(t, rabbitmq.Publish(t.Context(), rabbit.URL(), queue, p))
	}
	origin := func(id string) map[string]any {
		return map[string]any{"system": "rabbitmq", "cluster": "rabbitmq", "topic": queue, "partition": nil, "offset": nil, "id": id}
	}
	want := []message{
		{Value: "bare", Headers: [][2]any{{"z", "m0"}}, Origin: origin(""), AMQP: map[string]any{"routing_key": queue}},
		{Value: data([]byte("\xff\x00")), Headers: [][2]any{{"z", "m1"}}, Time: float64(at.UnixMilli()), Origin: origin("m;1"), AMQP: map[string]any{
			"routing_key": queue, "delivery_mode": "2", "priority": "7", "content_type": "text/plain; charset=UTF-8", "correlation_id": "c&=%;",
			"message_id": "m;1", "app_id": "grün",
		}},
		{Value: "", Headers: [][2]any{
			{"at", "2023-11-14T22:13:20Z"}, {"binary", data([]byte{0, 255})}, {"decimal", "3.14"}, {"double", "2.25"}, {"int", "-7"},
			{"list", "A(Sa%2Cb,I1,F{deep=A(ttrue,V)})"}, {"long", "1152921504606846976"}, {"readable", "text"}, {"table", "F{a=Sb,n=l1}"},
			{"text", "grün"}, {"void", nil}, {"yes", "true"}, {"z", "m2"},
		}, Origin: origin(""), AMQP: map[string]any{"routing_key": queue}},
	}
	topic := route(t, pulsar, fmt.Sprintf("rabbitmq: {url: %q, queues: [{name: %q}]}", "amqp://"+rabbit.Addr(), queue))
	t.Run("all", func(t *testing.T) { checkMessages(t, pulsar, topic, want) })
}
