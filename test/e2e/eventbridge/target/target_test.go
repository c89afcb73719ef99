// Package target tests Eventbridge's targets on real servers.
package target

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestMain(m *testing.M) {
	// The metrics of the plain client that makes topics never stop counting.
	leak.Main(m.Run, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// factory makes one that knows the connection "main" of each system that change sets.
func factory(t testing.TB, change func(*target.Options)) *target.Factory {
	t.Helper()
	o := target.Options{
		Config: target.Config{}, Pulsar: messaging.DefaultConfig(), Topics: model.Topics{Namespace: "public/default"}, Log: zaptest.NewLogger(t),
	}
	change(&o)
	f, err := target.NewFactory(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		require.NoError(t, f.Close(ctx))
	})
	return f
}

func open(t testing.TB, f *target.Factory, to model.Target, timeout time.Duration) target.Target {
	t.Helper()
	opened, err := f.New(&model.Subscriber{Bus: "b", Name: "s", Target: to, Delivery: model.Delivery{Timeout: model.Duration(timeout)}})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		require.NoError(t, opened.Close(ctx))
	})
	return opened
}

func delivery(t testing.TB, n int) target.Delivery {
	t.Helper()
	return stored(t, fmt.Sprintf(`{"specversion":"1.0","id":"e%d","source":"/shop","type":"order.placed","subject":"a \"b\"","time":"2026-11-22T10:00:00.123Z",`+
		`"partitionkey":"k%d","urgent":true,"data":{"n":%d}}`, n, n%3, n))
}

func stored(t testing.TB, text string) target.Delivery {
	t.Helper()
	e, err := event.Decode([]byte(text))
	require.NoError(t, err)
	return target.Delivery{Event: e, Hops: 1}
}

// send delivers and expects all to be acknowledged.
func send(t testing.TB, to target.Target, batch ...target.Delivery) {
	t.Helper()
	for i, result := range to.Deliver(context.Background(), batch) {
		require.Equal(t, target.Delivered, result.Verdict, "%d: %v", i, result.Err)
		require.Positive(t, result.Latency)
	}
}

func one(t testing.TB, to target.Target, d target.Delivery) target.Result {
	t.Helper()
	results := to.Deliver(context.Background(), []target.Delivery{d})
	require.Len(t, results, 1)
	return results[0]
}

// unused is an address where nobody listens.
func unused(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func transformed(t testing.TB, body, contentType string) target.Delivery {
	t.Helper()
	d := delivery(t, 1)
	d.Body, d.ContentType = []byte(body), contentType
	return d
}

func kafkaOptions(brokers ...string) func(*target.Options) {
	return func(o *target.Options) {
		var c target.Kafka
		c.SetDefaults()
		c.Brokers = brokers
		o.Connections.Kafka = map[string]target.Kafka{"main": c}
	}
}

func TestKafka(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.TopicWith(t, 3, map[string]string{"max.message.bytes": "20000"})
	f := factory(t, kafkaOptions(srv.Brokers()...))
	to := open(t, f, model.Target{Kafka: &model.KafkaTarget{Connection: "main", Topic: topic}}, await.Patience)
	var batch []target.Delivery
	for n := range 30 {
		batch = append(batch, delivery(t, n))
	}
	send(t, to, batch...)
	send(t, to, transformed(t, "<a/>", "application/xml"))
	send(t, to, stored(t, `{"specversion":"1.0","id":"plain","source":"/s","type":"t"}`))

	reader, err := kgo.NewClient(kgo.SeedBrokers(srv.Brokers()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	got := map[string]*kgo.Record{}
	last := map[string]int{}
	for len(got) < 32 {
		fetches := reader.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			head := headersOf(r)
			id := head["ce_id"] + head["content-type"]
			require.NotContains(t, got, id)
			got[id] = r
			var n int
			if _, err := fmt.Sscanf(string(r.Value), `{"n":%d}`, &n); err == nil {
				require.GreaterOrEqual(t, n, last[string(r.Key)], "those of one key are in their order")
				last[string(r.Key)] = n
			}
		})
	}
	r := got["e7application/json"]
	require.NotNil(t, r)
	assert.Equal(t, "k1", string(r.Key))
	assert.JSONEq(t, `{"n":7}`, string(r.Value))
	assert.Equal(t, map[string]string{
		"ce_specversion": "1.0", "ce_id": "e7", "ce_source": "/shop", "ce_type": "order.placed", "ce_subject": `a "b"`, "ce_time": "2026-11-22T10:00:00.123Z",
		"ce_partitionkey": "k1", "ce_urgent": "true", "content-type": "application/json", "aviary-hops": "2",
	}, headersOf(r))
	assert.WithinDuration(t, time.Now(), r.Timestamp, time.Hour)
	assert.Equal(t, "<a/>", string(got["e1application/xml"].Value))
	plain := got["plain"]
	assert.NotNil(t, plain.Value)
	assert.Empty(t, plain.Value)
	assert.Nil(t, plain.Key)

	// One that is too large for the topic is refused, one that is too large for the connection too.
	for _, size := range []int{30_000, 1_100_000} {
		result := one(t, to, stored(t, `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"`+random(size)+`"}`))
		for range 20 { // the first refusal was of a batch, and is sure only for one alone
			if result.Verdict == target.Refused {
				break
			}
			result = one(t, to, stored(t, `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"`+random(size)+`"}`))
		}
		assert.Equal(t, target.Refused, result.Verdict)
		assert.Equal(t, "too_large", result.Reason, "%v", result.Err)
	}
	send(t, to, delivery(t, 100))

	// A topic that does not exist is another attempt's chance.
	missing := open(t, f, model.Target{Kafka: &model.KafkaTarget{Connection: "main", Topic: topic + "-missing"}}, 10*time.Second)
	result := one(t, missing, delivery(t, 1))
	assert.Equal(t, target.Retry, result.Verdict)
	require.Error(t, result.Err)
	t.Log(result.Err)
}

func headersOf(r *kgo.Record) map[string]string {
	m := map[string]string{}
	for _, h := range r.Headers {
		m[h.Key] = string(h.Value)
	}
	return m
}

// random is text that does not compress well.
func random(n int) string {
	var b strings.Builder
	for x := uint64(88172645463325252); b.Len() < n; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		fmt.Fprintf(&b, "%016x", x)
	}
	return b.String()[:n]
}

// TestKafkaUnavailable: the reason why nothing was delivered is told.
func TestKafkaUnavailable(t *testing.T) {
	t.Parallel()
	f := factory(t, kafkaOptions(unused(t)))
	to := open(t, f, model.Target{Kafka: &model.KafkaTarget{Connection: "main", Topic: "orders"}}, 2*time.Second)
	result := one(t, to, delivery(t, 1))
	assert.Equal(t, target.Retry, result.Verdict)
	require.ErrorContains(t, result.Err, "connection refused")
}

func rabbitOptions(t testing.TB, srv *stack.RabbitMQServer) func(*target.Options) {
	t.Helper()
	return func(o *target.Options) {
		var c target.RabbitMQ
		c.SetDefaults()
		uri, err := amqp.ParseURI(srv.URL())
		require.NoError(t, err)
		c.URL, c.Username, c.Password = fmt.Sprintf("amqp://%s/", srv.Addr()), uri.Username, secret.String(uri.Password)
		o.Connections.RabbitMQ = map[string]target.RabbitMQ{"main": c}
	}
}

func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	srv := stack.RabbitMQ(t)
	conn, err := amqp.Dial(srv.URL())
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	exchange, queue := srv.Name(t), srv.Name(t)
	require.NoError(t, ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
	_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	defer func() {
		_, _ = ch.QueueDelete(queue, false, false, false)
		_ = ch.ExchangeDelete(exchange, false, false)
	}()
	require.NoError(t, ch.QueueBind(queue, "order.*", exchange, false, nil))

	f := factory(t, rabbitOptions(t, srv))
	to := open(t, f, model.Target{RabbitMQ: &model.RabbitMQTarget{Connection: "main", Exchange: exchange}}, await.Patience)
	send(t, to, delivery(t, 1), delivery(t, 2))
	send(t, to, stored(t, `{"specversion":"1.0","id":"3","source":"/s","type":"order.shipped","datacontenttype":"text/plain","data":"hé"}`))
	messages, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	got := receive(t, messages)
	assert.JSONEq(t, `{"n":1}`, string(got.Body))
	assert.Equal(t, "application/json", got.ContentType)
	assert.Equal(t, amqp.Persistent, got.DeliveryMode)
	assert.Equal(t, "order.placed", got.RoutingKey)
	assert.Equal(t, amqp.Table{
		"cloudEvents:specversion": "1.0", "cloudEvents:id": "e1", "cloudEvents:source": "/shop", "cloudEvents:type": "order.placed",
		"cloudEvents:subject": `a "b"`, "cloudEvents:time": "2026-11-22T10:00:00.123Z", "cloudEvents:partitionkey": "k1", "cloudEvents:urgent": "true",
		"aviary-hops": "2",
	}, got.Headers)
	assert.JSONEq(t, `{"n":2}`, string(receive(t, messages).Body))
	got = receive(t, messages)
	assert.Equal(t, "hé", string(got.Body))
	assert.Equal(t, "text/plain", got.ContentType)

	// A queue through the default exchange.
	direct := open(t, f, model.Target{RabbitMQ: &model.RabbitMQTarget{Connection: "main", RoutingKey: queue}}, await.Patience)
	send(t, direct, delivery(t, 4))
	assert.JSONEq(t, `{"n":4}`, string(receive(t, messages).Body))

	// An event whose type no queue takes is refused. A routing key of the subscriber's own that no
	// queue takes, and an exchange that does not exist, make the destination unavailable.
	result := one(t, to, stored(t, `{"specversion":"1.0","id":"3","source":"/s","type":"invoice"}`))
	assert.Equal(t, target.Refused, result.Verdict)
	assert.Equal(t, "unroutable", result.Reason, "%v", result.Err)
	result = one(t, open(t, f, model.Target{RabbitMQ: &model.RabbitMQTarget{Connection: "main", RoutingKey: queue + "-missing"}}, await.Patience), delivery(t, 5))
	assert.Equal(t, target.Retry, result.Verdict)
	assert.True(t, result.Unavailable)
	assert.Equal(t, "unroutable", result.Reason, "%v", result.Err)
	missing := open(t, f, model.Target{RabbitMQ: &model.RabbitMQTarget{Connection: "main", Exchange: exchange + "-missing"}}, 5*time.Second) // it is tried for as long
	result = one(t, missing, delivery(t, 5))
	assert.Equal(t, target.Retry, result.Verdict)
	assert.True(t, result.Unavailable)
	require.ErrorContains(t, result.Err, "-missing")
	send(t, to, delivery(t, 6))
	assert.JSONEq(t, `{"n":6}`, string(receive(t, messages).Body))
}

func receive(t testing.TB, messages <-chan amqp.Delivery) amqp.Delivery {
	t.Helper()
	select {
	case m, ok := <-messages:
		require.True(t, ok)
		return m
	case <-time.After(await.Patience):
		t.Fatal("no message came")
		return amqp.Delivery{}
	}
}

func TestPulsar(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	topic := srv.Topic(t, ns, 0)
	f := factory(t, func(o *target.Options) { o.Pulsar.URL = srv.URL() })
	to := open(t, f, model.Target{Pulsar: &model.PulsarTarget{Topic: topic}}, await.Patience)
	var batch []target.Delivery
	for n := range 20 {
		batch = append(batch, delivery(t, n))
	}
	send(t, to, batch...)
	send(t, to, transformed(t, "<a/>", "application/xml"))
	send(t, to, stored(t, `{"specversion":"1.0","id":"plain","source":"/s","type":"t"}`))

	cfg := messaging.DefaultConfig()
	cfg.URL = srv.URL()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	client, err := messaging.Dial(ctx, cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close(ctx)) }()
	reader, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic})
	require.NoError(t, err)
	defer func() { _ = reader.Close(ctx) }()
	var got []*messaging.Delivery
	for range 22 {
		d, err := reader.Next(ctx)
		require.NoError(t, err)
		got = append(got, d)
	}
	for n := range 20 {
		assert.JSONEq(t, fmt.Sprintf(`{"n":%d}`, n), string(got[n].Payload))
	}
	assert.Equal(t, "k1", got[7].Key)
	assert.Equal(t, map[string]string{
		"ce_specversion": "1.0", "ce_id": "e7", "ce_source": "/shop", "ce_type": "order.placed", "ce_subject": `a "b"`, "ce_time": "2026-11-22T10:00:00.123Z",
		"ce_partitionkey": "k1", "ce_urgent": "true", "content-type": "application/json", "aviary-hops": "2",
	}, got[7].Properties)
	assert.Equal(t, time.Date(2026, 11, 22, 10, 0, 0, 123e6, time.UTC), got[7].EventTime.UTC())
	assert.Equal(t, "<a/>", string(got[20].Payload))
	assert.Empty(t, got[21].Key)
	assert.NotNil(t, got[21].Payload)
	assert.Empty(t, got[21].Payload)
	assert.Equal(t, map[string]string{"ce_specversion": "1.0", "ce_id": "plain", "ce_source": "/s", "ce_type": "t", "aviary-hops": "2"}, got[21].Properties)
}
