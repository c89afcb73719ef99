package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestConsumerCancelled: the queue is deleted under the consumer, and declared again.
func TestConsumerCancelled(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	for _, kind := range []string{typeClassic, typeQuorum} {
		t.Run(kind, func(t *testing.T) {
			args := amqp.Table{argQueueType: kind}
			q := b.queue(args)
			b.publish(q, numberedMessages(0, 3)...)
			_, pipelines, r, _ := b.source(b.sourceConfig(q))
			first := pipelines.await(t, 0, 3)
			_, err := b.ch.QueueDelete(q, false, false, false)
			require.NoError(t, err)
			r.await(t, fmt.Sprintf("queue %q does not exist", q))
			assert.True(t, first.isAbandoned())
			_, err = b.ch.QueueDeclare(q, true, false, false, false, args)
			require.NoError(t, err)
			b.publish(q, numberedMessages(3, 5)...)
			assert.Equal(t, numberedTexts(3, 5), pipelines.await(t, 1, 2).texts())
			assert.Equal(t, "<nil>", r.last())
		})
	}
}

// TestChannelError: the broker closes the channel, the connection stays.
func TestChannelError(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q, other := b.queue(nil), b.queue(nil)
	b.publish(q, numberedMessages(0, 3)...)
	b.publish(other, numberedMessages(0, 3)...)
	_, pipelines, r, _ := b.source(b.sourceConfig(q, other))
	pipelines.await(t, 1, 3)
	first, second := pipelines.pipelines[0], pipelines.pipelines[1]
	first.await(t, 3)
	require.NoError(t, first.commit(99), "no such delivery: the broker refuses it")
	third := pipelines.await(t, 2, 3)
	assert.Equal(t, numberedTexts(0, 3), third.texts())
	assert.Equal(t, pipelines.names[0], pipelines.names[2])
	assert.False(t, second.isAbandoned())
	r.await(t, "<nil>")
	assert.Contains(t, fmt.Sprint(r.texts()), "PRECONDITION_FAILED")
}

func TestDeclare(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	exchange := b.Name(t)
	require.NoError(t, b.ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, false, true, false, false, nil))
	create := func(q Queue) Queue {
		cfg := b.sourceConfig()
		cfg.Declare = declareCreate
		cfg.Queues = []Queue{q}
		_, pipelines, _, stop := b.source(cfg)
		pipelines.await(t, 0, 0)
		stop()
		b.t.Cleanup(func() { b.remove(q.Name) })
		return q
	}
	classic := create(Queue{Name: b.Name(t) + "-classic", Arguments: map[string]any{"x-max-length": 100, "x-single-active-consumer": true},
		Bindings: []Binding{{Exchange: exchange, Key: "a.*"}}})
	quorum := create(Queue{Name: b.Name(t) + "-quorum", Type: typeQuorum})
	brief := Queue{Name: b.Name(t) + "-brief"}
	_, err := b.ch.QueueDeclare(brief.Name, false, false, false, false, nil)
	require.NoError(t, err)
	b.t.Cleanup(func() { b.remove(brief.Name) })
	require.NoError(t, b.ch.Publish(exchange, "a.b", true, false, amqp.Publishing{}))
	assert.Len(t, b.receive(classic.Name, 1), 1)

	for name, c := range map[string]struct {
		queue   Queue
		declare string
		want    string
	}{
		"verified":             {classic, declareVerify, ""},
		"verified, named type": {Queue{Name: classic.Name, Type: typeClassic, Arguments: classic.Arguments}, declareVerify, ""},
		"verified quorum":      {quorum, declareVerify, ""},
		"created again":        {classic, declareCreate, ""},
		"only a name":          {brief, declareVerify, ""},
		"wrong type":           {Queue{Name: quorum.Name, Type: typeClassic}, declareVerify, "is not as configured: PRECONDITION_FAILED - inequivalent arg 'x-queue-type'"},
		"wrong durable":        {Queue{Name: brief.Name, Type: typeClassic}, declareVerify, "inequivalent arg 'durable'"},
		"wrong argument":       {Queue{Name: classic.Name, Arguments: map[string]any{"x-max-length": 1}}, declareVerify, "inequivalent arg 'x-max-length'"},
		"wrong when created":   {Queue{Name: classic.Name, Type: typeQuorum}, declareCreate, "is not as configured"},
		"missing":              {Queue{Name: exchange + "-missing"}, declareVerify, "-missing\" does not exist"},
		"missing exchange":     {Queue{Name: classic.Name, Bindings: []Binding{{Exchange: exchange + "-no"}}}, declareVerify, "binding to exchange"},
		"impossible":           {Queue{Name: exchange + "-bad", Arguments: map[string]any{"x-max-length": "many"}}, declareCreate, "cannot declare queue"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := b.sourceConfig()
			cfg.Declare = c.declare
			cfg.Queues = []Queue{c.queue}
			_, pipelines, r, stop := b.source(cfg)
			if c.want == "" {
				pipelines.await(t, 0, 0)
				assert.Equal(t, "<nil>", r.last())
			} else {
				r.await(t, c.want)
				assert.Empty(t, pipelines.pipelines)
			}
			stop()
		})
	}
}

// TestStream: offsets, and where it goes on.
func TestStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(amqp.Table{argQueueType: typeStream})
	for i := 0; i < 100; i += 10 { // a chunk each, at least
		b.publish(q, numberedMessages(i, i+10)...)
	}
	start := func(offset string) (*Source, *openedPipelines, string, func()) {
		cfg := b.sourceConfig()
		cfg.Prefetch = 10
		cfg.Name = b.Name(t)
		cfg.Queues = []Queue{{Name: q, Type: typeStream, Offset: offset}}
		s, pipelines, _, stop := b.source(cfg)
		return s, pipelines, cfg.Name, stop
	}
	s, pipelines, name, stop := start("")
	first := pipelines.await(t, 0, 10)
	chunk := len(first.texts())
	assert.Less(t, chunk, 100, "prefetch is kept by chunks of the stream")
	require.NoError(t, first.commitTo(9))
	for i, m := range first.messages() {
		assert.Equal(t, message.From{System: "rabbitmq", Cluster: "rabbitmq", Topic: q, Partition: -1, Offset: int64(i), Received: m.From.Received}, m.From)
		assert.Empty(t, m.Headers)
	}
	lag, err := s.Lag(t.Context())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, lag, int64(chunk-10))

	b.kill(name)
	second := pipelines.await(t, 1, 10)
	assert.Equal(t, numberedTexts(10, 20), second.texts()[:10], "goes on behind what was committed")
	stop()

	_, pipelines, _, stop = start("95")
	assert.Equal(t, numberedTexts(95, 100), pipelines.await(t, 0, 5).texts())
	stop()
	_, pipelines, _, stop = start("next")
	pipelines.await(t, 0, 0) // opened once the broker has confirmed the consumer
	b.publish(q, numberedMessages(100, 102)...)
	assert.Equal(t, numberedTexts(100, 102), pipelines.await(t, 0, 2).texts())
	stop()
	_, pipelines, _, _ = start("last")
	l := pipelines.await(t, 0, 1)
	// The last chunk has one message or both, which come one by one.
	assert.Eventually(t, func() bool { return slices.Contains(l.texts(), "101") }, waitTimeout, 5*time.Millisecond)
}

// TestStreamThatWasEmptyWhenTheConnectionEnded: next and last are places that move on, but what is
// stored once a source has begun is not left out.
func TestStreamThatWasEmptyWhenTheConnectionEnded(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	for _, offset := range []string{"next", "last"} {
		t.Run(offset, func(t *testing.T) {
			q := b.queue(amqp.Table{argQueueType: typeStream})
			cfg := b.sourceConfig()
			cfg.Name, cfg.Queues = b.Name(t), []Queue{{Name: q, Type: typeStream, Offset: offset}}
			_, pipelines, _, stop := b.source(cfg)
			defer stop()
			pipelines.await(t, 0, 0)
			b.kill(cfg.Name)
			for i := range 20 { // a chunk each
				b.publish(q, numberedMessages(i, i+1)...)
			}
			assert.Equal(t, numberedTexts(0, 20), pipelines.await(t, 1, 20).texts())
		})
	}
}

func (b *broker) consumers(queue string) int {
	q, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(b.t, err)
	return q.Consumers
}

func (l *manualPipeline) await(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return l.count() >= n }, waitTimeout, time.Millisecond)
}

// TestParallel: several pipelines of one queue, each with its own acknowledgements.
func TestParallel(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	cfg := b.sourceConfig(q)
	cfg.ParallelConsumers, cfg.Prefetch = 3, 10
	s, pipelines, _, stop := b.source(cfg)
	pipelines.await(t, 2, 0)
	require.Eventually(t, func() bool { return b.consumers(q) == 3 }, waitTimeout, time.Millisecond)
	b.publish(q, numberedMessages(0, 30)...)
	for i := range 3 {
		l := pipelines.await(t, i, 10)
		assert.Len(t, l.texts(), 10)
		require.NoError(t, l.commitTo(i))
	}
	lag, err := s.Lag(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 30-1-2-3, lag)
	stop()
	require.Eventually(t, func() bool { return b.ready(q) == 24 }, waitTimeout, time.Millisecond)
}

// TestSingleActiveConsumer: a second source waits, and takes over where the first one's
// acknowledgements ended.
func TestSingleActiveConsumer(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(amqp.Table{"x-single-active-consumer": true})
	_, one, _, stop := b.source(b.sourceConfig(q))
	one.await(t, 0, 0)
	require.Eventually(t, func() bool { return b.consumers(q) == 1 }, waitTimeout, time.Millisecond)
	_, two, r, _ := b.source(b.sourceConfig(q))
	l := two.await(t, 0, 0)
	b.publish(q, numberedMessages(0, 10)...)
	first := one.await(t, 0, 10)
	assert.Zero(t, l.count())
	require.NoError(t, first.commitTo(4))
	stop()
	l.await(t, 5)
	assert.Equal(t, numberedTexts(5, 10), l.texts())
	assert.Equal(t, "<nil>", r.last())
}

// TestBackPressure: a pipeline that takes nothing keeps the rest in the queue, and its connection alive
// and quick to stop.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	b.publish(q, numberedMessages(0, 100)...)
	cfg := b.sourceConfig(q)
	cfg.Prefetch, cfg.DrainTimeout, cfg.Heartbeat, cfg.Name = 10, time.Second, time.Second, q
	s := cfg.NewSource(connector.Options{}).(*Source)
	s.takeMoreAtOnce()
	stuck := make(chan *blockedPipeline, 10)
	stop := background(t, func(ctx context.Context) error {
		return s.run(ctx, func(string, int, func(int64) error) sourcePipeline {
			l := &blockedPipeline{offered: make(chan struct{}, 1)}
			stuck <- l
			return l
		})
	})
	first := <-stuck
	<-first.offered
	require.Eventually(t, func() bool { return b.ready(q) == 90 }, waitTimeout, time.Millisecond)
	b.kill(q)
	<-(<-stuck).offered // the first one was released: its channel had ended
	stop()
	require.Eventually(t, func() bool { return b.ready(q) == 100 }, waitTimeout, time.Millisecond)
}

// TestPrefetchFollowsSizes: with messages that grow and shrink the broker delivers fewer and more
// ahead, and each arrives once and in order.
func TestPrefetchFollowsSizes(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	large := strings.Repeat("x", 256<<10)
	const small, end = 500, 1500
	for n := 0; n < end; n += 100 {
		ps := numberedMessages(n, n+100)
		for i := range ps {
			if n == small {
				ps[i].Body = append(ps[i].Body, large...)
			}
		}
		b.publish(q, ps...)
	}
	cfg := b.sourceConfig(q)
	cfg.Prefetch, cfg.PrefetchBytes = 100, 2<<20
	s := cfg.NewSource(connector.Options{}).(*Source)
	var mu sync.Mutex
	var got []string
	set := newSet(t, sinkOf(func(m *message.Message, done func(error)) {
		mu.Lock()
		got = append(got, strings.TrimRight(string(m.Value), "x"))
		mu.Unlock()
		done(nil)
	}), "")
	var counts []int
	background(t, func(ctx context.Context) error {
		return s.run(ctx, func(name string, ahead int, commit func(int64) error) sourcePipeline {
			mu.Lock()
			defer mu.Unlock()
			counts = append(counts, ahead)
			return set.Open(name, commit)
		})
	})
	require.Eventually(t, func() bool { // messages that the source has received are not ready any more
		mu.Lock()
		defer mu.Unlock()
		return len(got) >= end
	}, waitTimeout, 10*time.Millisecond)
	require.Eventually(t, func() bool { lag, err := s.Lag(t.Context()); return err == nil && lag == 0 && b.ready(q) == 0 }, waitTimeout, 10*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, numberedTexts(0, end), got)
	assert.Equal(t, []int{1, 100}, counts[:2], "one until it is stored")
	assert.Less(t, slices.Min(counts[2:]), 20, "of 256KiB")
	assert.Equal(t, 100, counts[len(counts)-1])
}

// sinkOf is a sink of a function.
type sinkOf func(m *message.Message, done func(error))

func (f sinkOf) Send(_ context.Context, _ string, m *message.Message, done func(error)) { f(m, done) }

type blockedPipeline struct{ offered chan struct{} }

func (l *blockedPipeline) Offer(ctx context.Context, _ *message.Message, _ int64) error {
	l.offered <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}
func (l *blockedPipeline) Drain(context.Context) error { return nil }
func (l *blockedPipeline) Close(context.Context) error { return nil }
func (l *blockedPipeline) Abandon()                    {}

// throughRestart: a route from queue to queue, the broker killed under it: nothing is lost, order
// holds.
func throughRestart(t *testing.T, b *broker) {
	t.Helper()
	const n = 10_000
	in, out := b.Name(t), b.Name(t)
	b.declareDurable(in, out)
	for i := 0; i < n; i += 1000 {
		b.publish(in, numberedMessages(i, i+1000)...)
	}
	cfg := b.sourceConfig(in)
	cfg.Prefetch = 500
	source, _, stop := b.route(cfg, b.sinkConfig(), out)
	require.Eventually(t, func() bool { return b.ready(out) > n/10 }, waitTimeout, time.Millisecond)
	require.NoError(t, b.Kill())
	require.NoError(t, b.Start(t.Context()))
	b.connect()
	require.Eventually(t, func() bool { // unacknowledged ones are not ready
		lag, err := source.Lag(t.Context())
		return err == nil && lag == 0
	}, waitTimeout, 10*time.Millisecond)
	stop()
	t.Logf("%d arrived twice", b.takeInOrder(out, n))
}
