package pigeonhole

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/history"
	"github.com/aviaryhq/aviary/test/stack"
)

const keys = 7 // of the numbered messages

// numbered is the text of the nth message: its key and its number among those of the
// key.
func numbered(n int) (key, value string) {
	key = "k" + strconv.Itoa(n%keys)
	return key, key + ":" + strconv.Itoa(n/keys)
}

// system is what the suite does with one of the three.
type system interface {
	// place makes a topic or a queue.
	place(t testing.TB) string
	// put stores the messages from..to-1; it goes on while the server is unavailable.
	put(t testing.TB, place string, from, to int)
	// read passes on what the place has and gets, until ctx ends. It goes on while the
	// server is unavailable.
	read(ctx context.Context, t testing.TB, place string, got func(value string, headers map[string]string))
	// source and sink are sections of the configuration.
	source(place string) string
	sink() string
	// origin is what the provenance of its messages begins with.
	origin(place string) string
}

// arrivals counts what comes to a place.
type arrivals struct {
	t    testing.TB
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	counts  map[string]int
	keyed   map[string]*history.Followed
	headers map[string]string
	total   int
}

// arriving reads a place until the test ends.
func arriving(t testing.TB, s system, place string) *arrivals {
	t.Helper()
	a := &arrivals{t: t, done: make(chan struct{}), counts: map[string]int{}, keyed: map[string]*history.Followed{}}
	var ctx context.Context
	ctx, a.stop = context.WithCancel(context.Background())
	go func() {
		defer close(a.done)
		s.read(ctx, t, place, a.note)
	}()
	t.Cleanup(func() { a.stop(); <-a.done })
	return a
}

func (a *arrivals) note(value string, headers map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total++
	a.counts[value]++
	a.headers = headers
	if key, text, ok := strings.Cut(value, ":"); ok {
		// A message that was stored is sent again behind one that was not: what counts
		// is that each is followed by all that come after it.
		if n, err := strconv.Atoi(text); err == nil {
			if a.keyed[key] == nil {
				a.keyed[key] = new(history.Followed)
			}
			a.keyed[key].See(n)
		}
	}
}

func (a *arrivals) distinct() int { distinct, _ := a.count(); return distinct }

// count is how many different messages have come, and how many with those that came again.
func (a *arrivals) count() (distinct, total int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.counts), a.total
}

// all waits until n messages have come, each at least once, and in order within their
// keys: what comes again is followed by all behind it, and the newest of each key comes last. It
// fails when nothing more comes.
func (a *arrivals) all(n int) {
	a.t.Helper()
	last, since := -1, time.Now()
	for ; ; time.Sleep(pollEvery) { // polling a condition
		distinct, total := a.count()
		if distinct >= n {
			if err := a.inOrder(n); err == nil {
				require.Equal(a.t, n, distinct)
				return
			}
		}
		if total > last {
			last, since = total, time.Now()
		} else if time.Since(since) > await.Patience {
			require.NoError(a.t, a.inOrder(n), "%d of %d arrived", distinct, n)
		}
	}
}

// some waits until so many different messages have come.
func (a *arrivals) some(n int) {
	a.t.Helper()
	require.Eventually(a.t, func() bool { return a.distinct() >= n }, await.Patience, pollEvery, "%d messages", n)
	require.Equal(a.t, n, a.distinct())
}

// inOrder says what is missing, or out of order, of n messages.
func (a *arrivals) inOrder(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range keys {
		key := "k" + strconv.Itoa(k)
		followed := a.keyed[key]
		if followed == nil {
			followed = new(history.Followed)
		}
		if err := followed.End((n - k + keys - 1) / keys); err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
	}
	return nil
}

// copies is how many have come more than once.
func (a *arrivals) copies() int { distinct, total := a.count(); return total - distinct }

// longestStart is how long a server that was killed may take to come back.
const longestStart = 3 * await.Patience

// retry calls do until it succeeds.
func retry(t testing.TB, do func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(longestStart); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) { // the server may be unavailable
		if err = do(); err == nil {
			return
		}
	}
	t.Errorf("gave up: %v", err)
}

// kafkaSystem is a Kafka, which the service may reach by another way.
type kafkaSystem struct {
	server *stack.KafkaServer
	broker string
}

func newKafka(s *stack.KafkaServer) *kafkaSystem { return &kafkaSystem{s, s.Brokers()[0]} }

func (k *kafkaSystem) place(t testing.TB) string {
	t.Helper()
	return k.server.Topic(t, 3)
}

func (k *kafkaSystem) source(place string) string {
	return k.alone(place, ", instance_id: first, session_timeout: 30s") // it comes back at once after a kill
}

// alone is a source without, or with, more keys.
func (k *kafkaSystem) alone(place, more string) string {
	return fmt.Sprintf("kafka: {brokers: [%q], group: %s-group, topics: [%s], commit_interval: 100ms%s}", k.broker, place, place, more)
}

func (k *kafkaSystem) sink() string { return fmt.Sprintf("kafka: {brokers: [%q]}", k.broker) }

func (k *kafkaSystem) origin(place string) string { return "kafka;kafka;" + place + ";" }

func (k *kafkaSystem) put(t testing.TB, place string, from, to int) {
	t.Helper()
	cfg := kafka.Durable()
	cfg.Producer.Flush.Frequency = time.Millisecond
	var producer sarama.SyncProducer
	retry(t, func() (err error) {
		producer, err = sarama.NewSyncProducer(k.server.Brokers(), cfg)
		return err
	})
	defer producer.Close()
	const chunk = 200
	for n := from; n < to; n += chunk {
		var batch []*sarama.ProducerMessage
		for i := n; i < min(n+chunk, to); i++ {
			key, value := numbered(i)
			batch = append(batch, &sarama.ProducerMessage{
				Topic: place, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
				Headers: []sarama.RecordHeader{{Key: []byte("colour"), Value: []byte("grün")}},
			})
		}
		retry(t, func() error { return producer.SendMessages(batch) })
	}
}

func (k *kafkaSystem) read(ctx context.Context, t testing.TB, place string, got func(string, map[string]string)) {
	t.Helper()
	retry(t, func() error {
		return kafka.Read(ctx, k.server.Brokers(), place, nil, func(m *sarama.ConsumerMessage) {
			headers := map[string]string{}
			for _, h := range m.Headers {
				headers[string(h.Key)] = string(h.Value)
			}
			got(string(m.Value), headers)
		})
	})
}

// rabbitSystem is a RabbitMQ.
type rabbitSystem struct {
	server *stack.RabbitMQServer
	url    string
}

func newRabbit(s *stack.RabbitMQServer) *rabbitSystem { return &rabbitSystem{s, bare(s.URL())} }

func (r *rabbitSystem) place(t testing.TB) string {
	t.Helper()
	name := r.server.Name(t)
	require.NoError(t, rabbitmq.Declare(r.server.URL(), name))
	t.Cleanup(func() { _ = rabbitmq.Delete(r.server.URL(), name) })
	return name
}

// bare is a URL without its user.
func bare(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		panic(err) // of the stack
	}
	u.User = nil
	return u.String()
}

// with opens a channel for a moment.
func (r *rabbitSystem) with(do func(*amqp.Channel) error) error {
	return rabbitmq.With(r.server.URL(), do)
}

func (r *rabbitSystem) source(place string) string {
	return fmt.Sprintf("rabbitmq: {url: %q, queues: [{name: %q}]}", r.url, place)
}

func (r *rabbitSystem) sink() string { return fmt.Sprintf("rabbitmq: {url: %q}", r.url) }

func (r *rabbitSystem) origin(place string) string { return "rabbitmq;rabbitmq;" + place + ";" }

func (r *rabbitSystem) put(t testing.TB, place string, from, to int) {
	t.Helper()
	const chunkSize = 200
	for n := from; n < to; n += chunkSize {
		var chunk []amqp.Publishing
		for i := n; i < min(n+chunkSize, to); i++ {
			_, value := numbered(i)
			chunk = append(chunk, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(value), Headers: amqp.Table{"colour": "grün"}})
		}
		retry(t, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
			defer cancel()
			return rabbitmq.Publish(ctx, r.server.URL(), place, chunk...)
		})
	}
}

func (r *rabbitSystem) read(ctx context.Context, _ testing.TB, place string, got func(string, map[string]string)) {
	rabbitmq.Read(ctx, r.server.URL(), place, func(d amqp.Delivery) {
		headers := map[string]string{}
		for name, value := range d.Headers {
			headers[name] = fmt.Sprint(value)
		}
		got(string(d.Body), headers)
	})
}

// pulsarSystem is a Pulsar.
type pulsarSystem struct {
	server   *stack.PulsarServer
	url      string
	listener string
}

func newPulsar(s *stack.PulsarServer) *pulsarSystem {
	return &pulsarSystem{server: s, url: s.URL()}
}

func (p *pulsarSystem) place(t testing.TB) string {
	t.Helper()
	return p.server.Topic(t, p.server.Namespace(t), 3)
}

// exactPlace is a topic whose brokers drop what was stored before.
func (p *pulsarSystem) exactPlace(t testing.TB) string {
	t.Helper()
	namespace := p.server.Namespace(t)
	require.NoError(t, p.server.Admin(t.Context(), http.MethodPost, "/admin/v2/namespaces/"+namespace+"/deduplication", true, nil))
	return p.server.Topic(t, namespace, 3)
}

func (p *pulsarSystem) source(place string) string {
	return p.section(fmt.Sprintf("topics: [%q], subscription: route, type: failover", place))
}

func (p *pulsarSystem) sink() string { return p.section("") }

// section is a source or sink with more keys.
func (p *pulsarSystem) section(more string) string {
	if p.listener != "" {
		more += ", listener_name: " + p.listener
	}
	return fmt.Sprintf("pulsar: {url: %q, %s}", p.url, strings.TrimPrefix(more, ", "))
}

func (p *pulsarSystem) client(t testing.TB) *messaging.Client {
	t.Helper()
	cfg := messaging.DefaultConfig()
	cfg.URL = p.server.URL()
	client, err := messaging.Dial(t.Context(), cfg)
	require.NoError(t, err)
	return client
}

func (p *pulsarSystem) origin(place string) string { return "pulsar;pulsar;" + place + ";" }

func (p *pulsarSystem) put(t testing.TB, place string, from, to int) {
	t.Helper()
	var records []*messaging.Record
	for n := from; n < to; n++ {
		key, value := numbered(n)
		records = append(records, &messaging.Record{Key: key, Payload: []byte(value), Properties: map[string]string{"colour": "grün"}})
	}
	require.NoError(t, pulsar.Publish(t.Context(), p.server.URL(), place, records...))
}

func (p *pulsarSystem) read(ctx context.Context, t testing.TB, place string, got func(string, map[string]string)) {
	t.Helper()
	// A reconnect of this consumer delivers what it has not acknowledged again: that is
	// none of the route's doing.
	seen := map[string]bool{}
	err := pulsar.Read(ctx, p.server.URL(), place, "arrivals", func(d *messaging.Delivery) {
		if id := d.Topic + d.ID.String(); !seen[id] {
			seen[id] = true
			got(string(d.Payload), d.Properties)
		}
	})
	if err != nil {
		t.Error(err)
	}
}
