package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

// waitTimeout is await.Patience: a function of this package has the name of that one.
const waitTimeout = time.Minute

// broker is a RabbitMQ and a plain client of it.
type broker struct {
	*stack.RabbitMQServer
	t    *testing.T
	conn *amqp.Connection
	ch   *amqp.Channel
}

func newBroker(t *testing.T, srv *stack.RabbitMQServer) *broker {
	t.Helper()
	b := &broker{RabbitMQServer: srv, t: t}
	b.connect()
	t.Cleanup(func() { _ = b.conn.Close() })
	return b
}

func (b *broker) connect() {
	b.t.Helper()
	var err error
	b.conn, err = amqp.Dial(b.URL())
	require.NoError(b.t, err)
	b.open()
}

func (b *broker) open() {
	b.t.Helper()
	var err error
	b.ch, err = b.conn.Channel()
	require.NoError(b.t, err)
	require.NoError(b.t, b.ch.Confirm(false))
}

// declareDurable declares queues that survive even a kill right afterwards.
func (b *broker) declareDurable(names ...string) {
	b.t.Helper()
	for _, name := range names {
		_, err := b.ch.QueueDeclare(name, true, false, false, false, nil)
		require.NoError(b.t, err)
	}
	b.WriteDefinitions(b.t)
}

// queue declares a queue that is deleted after the test.
func (b *broker) queue(args amqp.Table) string {
	b.t.Helper()
	name := b.Name(b.t)
	_, err := b.ch.QueueDeclare(name, true, false, false, false, args)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { b.remove(name) })
	return name
}

func (b *broker) remove(queue string) {
	_ = onChannel(b.conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, false, false, false)
		return err
	})
}

func (b *broker) publish(queue string, ps ...amqp.Publishing) {
	b.t.Helper()
	confirms := make([]*amqp.DeferredConfirmation, len(ps))
	for i, p := range ps {
		var err error
		confirms[i], err = b.ch.PublishWithDeferredConfirm("", queue, true, false, p)
		require.NoError(b.t, err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), waitTimeout)
	defer cancel()
	for _, c := range confirms {
		ok, err := c.WaitContext(ctx)
		require.NoError(b.t, err)
		require.True(b.t, ok)
	}
}

func numberedMessages(from, to int) (ps []amqp.Publishing) {
	for i := from; i < to; i++ {
		ps = append(ps, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(i))})
	}
	return ps
}

// receive takes n messages, and fails unless they arrive within waitTimeout.
func (b *broker) receive(queue string, n int) (ds []amqp.Delivery) {
	b.t.Helper()
	end := time.Now().Add(waitTimeout)
	for len(ds) < n && time.Now().Before(end) {
		d, ok, err := b.ch.Get(queue, true)
		require.NoError(b.t, err)
		if ok {
			ds = append(ds, d)
		} else {
			time.Sleep(2 * time.Millisecond)
		}
	}
	require.Len(b.t, ds, n)
	return ds
}

// take calls more with each message that a queue has and gets, in order, until it returns false. It
// fails when none comes for waitTimeout.
func (b *broker) take(queue string, more func(text string) bool) {
	b.t.Helper()
	ch, err := b.conn.Channel()
	require.NoError(b.t, err)
	defer func() { _ = ch.Close() }()
	require.NoError(b.t, ch.Qos(1000, 0, false))
	ds, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(b.t, err)
	for {
		select {
		case d := <-ds:
			if !more(string(d.Body)) {
				return
			}
		case <-time.After(waitTimeout):
			require.Fail(b.t, "no more messages", queue)
		}
	}
}

// takeInOrder takes messages until those from 0 to n-1 have come: none may be missing, and what
// comes again is followed by all behind it. It returns how many have come again.
func (b *broker) takeInOrder(queue string, n int) (again int) {
	b.t.Helper()
	seen, last, total := 0, -1, 0
	b.take(queue, func(text string) bool {
		i, err := strconv.Atoi(text)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, i, seen, "%d is missing, or passed by", seen)
		require.True(b.t, i == last+1 || i <= last, "order")
		last = i
		total++
		seen = max(seen, i+1)
		return seen < n
	})
	return total - n
}

func (b *broker) ready(queue string) int {
	q, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(b.t, err)
	return q.Messages
}

func bodies(ds []amqp.Delivery) (texts []string) {
	for _, d := range ds {
		texts = append(texts, string(d.Body))
	}
	return texts
}

func numberedTexts(from, to int) (ts []string) {
	for i := from; i < to; i++ {
		ts = append(ts, strconv.Itoa(i))
	}
	return ts
}

func (b *broker) connection() Connection {
	c := defaultConnection()
	c.URL = "amqp://" + b.Addr() + "/"
	return c
}

func (b *broker) sourceConfig(queues ...string) SourceConfig {
	cfg := DefaultSourceConfig()
	cfg.Connection = b.connection()
	for _, q := range queues {
		cfg.Queues = append(cfg.Queues, Queue{Name: q})
	}
	return cfg
}

func (b *broker) sinkConfig() SinkConfig {
	cfg := DefaultSinkConfig()
	cfg.Connection = b.connection()
	return cfg
}

// reports keeps what was reported.
type reports struct {
	mu  sync.Mutex
	all []string
}

func (r *reports) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprint(err))
}

func (r *reports) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

func (r *reports) last() string {
	all := r.texts()
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

func (r *reports) await(t *testing.T, text string) {
	t.Helper()
	assert.EventuallyWithT(t, func(c *assert.CollectT) { assert.Contains(c, r.last(), text) }, waitTimeout, 5*time.Millisecond)
}

// background runs f until the test or the returned function ends it.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				assert.NoError(t, err)
			case <-time.After(waitTimeout):
				assert.Fail(t, "Run does not return")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func (b *broker) sink(cfg SinkConfig) (*Sink, *reports, func()) {
	b.t.Helper()
	r := &reports{}
	s := cfg.NewSink(connector.Options{Report: r.report}).(*Sink)
	return s, r, background(b.t, s.Run)
}

// outcomes are those of many Sends, by number.
type outcomes struct {
	mu   sync.Mutex
	errs map[int]error
	seq  []int
}

func (o *outcomes) done(n int) func(error) {
	return func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.errs == nil {
			o.errs = map[int]error{}
		}
		if _, twice := o.errs[n]; twice {
			panic("done was called twice")
		}
		o.errs[n] = err
		o.seq = append(o.seq, n)
	}
}

func (o *outcomes) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.errs)
}

func (o *outcomes) outcome(n int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.errs[n]
}

func (o *outcomes) await(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return o.count() >= n }, waitTimeout, time.Millisecond, "%d outcomes", n)
}

// send sends one message and returns its outcome.
func send(t *testing.T, s *Sink, to string, m *message.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	outcome := make(chan error, 1)
	s.Send(ctx, to, m, func(err error) { outcome <- err })
	select {
	case err := <-outcome:
		return err
	case <-time.After(waitTimeout):
		return errors.New("no outcome")
	}
}

func text(s string) *message.Message { return &message.Message{Value: []byte(s)} }

// route joins a source and a sink, with real pipelines.
func (b *broker) route(sc SourceConfig, kc SinkConfig, to string) (*Source, *Sink, func()) {
	b.t.Helper()
	sink, kr, _ := b.sink(kc)
	r := &reports{}
	source := sc.NewSource(connector.Options{Report: r.report}).(*Source)
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Log("source:", r.texts(), "sink:", kr.texts())
		}
	})
	set := newSet(b.t, sink, to)
	return source, sink, background(b.t, func(ctx context.Context) error { return source.Run(ctx, set) })
}

func newSet(t testing.TB, sink pipeline.Sink, to string) *pipeline.Set {
	t.Helper()
	return pipeline.NewSet(pipeline.Config{Messages: 10_000, Bytes: 64 << 20, CommitEvery: 50 * time.Millisecond, MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second},
		pipeline.Route{
			Sink: sink, Log: zap.NewNop(), Metrics: pipeline.NewMetrics(prometheus.NewRegistry()).Route("test"),
			Prepare: func() (pipeline.Prepare, func()) {
				return func(context.Context, *message.Message) (string, bool, error) { return to, true, nil }, nil
			},
			Stop: func(err error) { t.Logf("the route stops: %v", err) }, Report: func(error) {},
		})
}

// TestRoundTrip: properties, typed headers and bodies arrive as they were, in order.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	in, out := b.queue(nil), b.queue(nil)
	full := amqp.Publishing{
		Headers: amqp.Table{
			"s": "text", "empty": "", "binary": "\xff\x00", "bytes": []byte{0, 1, 255}, "true": true, "false": false, "i8": int8(-8), "u8": uint8(200),
			"i16": int16(-1600), "u16": uint16(60_000), "i32": int32(-1 << 31), "u32": uint32(1<<32 - 1), "i64": int64(-1 << 63), "f32": float32(1.5), "f64": 1e-300,
			"decimal": amqp.Decimal{Scale: 3, Value: -12345}, "time": time.Unix(1_700_000_000, 0), "void": nil,
			"table": amqp.Table{"a": int32(1), "deep": amqp.Table{"b": []any{"x", int64(2), nil, amqp.Table{}}}}, "array": []any(nil), "über": "ü",
		},
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Transient, Priority: 7, CorrelationId: "c", ReplyTo: "r",
		Expiration: "3600000", MessageId: "m", Timestamp: time.Unix(1_700_000_001, 0), Type: "t", UserId: "guest", AppId: "a", Body: []byte("body"),
	}
	ps := []amqp.Publishing{full, {}, {Body: make([]byte, 300_000), DeliveryMode: amqp.Persistent}}
	b.publish(in, append(ps, numberedMessages(0, 1000)...)...)
	b.route(b.sourceConfig(in), b.sinkConfig(), out)
	got := b.receive(out, 1003)
	for i, want := range ps {
		d := got[i]
		assert.Contains(t, d.Headers[message.EntryOrigin], "rabbitmq;rabbitmq;"+in, "what is added is said")
		if delete(d.Headers, message.EntryOrigin); len(d.Headers) == 0 {
			d.Headers = nil
		}
		assert.Equal(t, want.Headers, d.Headers)
		if want.Body == nil {
			want.Body = []byte{}
		}
		back := amqp.Publishing{
			Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
			CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type,
			UserId: d.UserId, AppId: d.AppId, Body: d.Body,
		}
		assert.Equal(t, want, back)
	}
	assert.Equal(t, numberedTexts(0, 1000), bodies(got[3:]))
	require.Eventually(t, func() bool { return b.ready(in) == 0 }, waitTimeout, 5*time.Millisecond)
}

// manualPipeline is a pipeline that keeps the offered messages and commits when the test says so.
type manualPipeline struct {
	mu        sync.Mutex
	ms        []*message.Message
	at        []int64
	commit    func(int64) error
	abandoned bool
	closed    bool
}

func (l *manualPipeline) Offer(ctx context.Context, m *message.Message, position int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ms, l.at = append(l.ms, m), append(l.at, position)
	return ctx.Err()
}

func (l *manualPipeline) Drain(context.Context) error { return nil }

func (l *manualPipeline) Close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}
func (l *manualPipeline) Abandon()          { l.mu.Lock(); defer l.mu.Unlock(); l.abandoned = true }
func (l *manualPipeline) count() int        { l.mu.Lock(); defer l.mu.Unlock(); return len(l.ms) }
func (l *manualPipeline) isAbandoned() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.abandoned }

func (l *manualPipeline) messages() []*message.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ms)
}

func (l *manualPipeline) texts() (ts []string) {
	for _, m := range l.messages() {
		ts = append(ts, string(m.Value))
	}
	return ts
}

// commitTo commits up to the i-th message.
func (l *manualPipeline) commitTo(i int) error {
	l.mu.Lock()
	position := l.at[i]
	l.mu.Unlock()
	return l.commit(position)
}

// openedPipelines are the pipelines of a source, in the order of opening.
type openedPipelines struct {
	mu        sync.Mutex
	pipelines []*manualPipeline
	names     []string
}

func (o *openedPipelines) open(name string, _ int, commit func(int64) error) sourcePipeline {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := &manualPipeline{commit: commit}
	o.pipelines, o.names = append(o.pipelines, l), append(o.names, name)
	return l
}

func (o *openedPipelines) await(t *testing.T, pipeline, messages int) *manualPipeline {
	t.Helper()
	var l *manualPipeline
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.pipelines) > pipeline {
			l = o.pipelines[pipeline]
		}
		return l != nil && l.count() >= messages
	}, waitTimeout, time.Millisecond, "pipeline %d with %d messages", pipeline, messages)
	return l
}

func (b *broker) source(cfg SourceConfig) (*Source, *openedPipelines, *reports, func()) {
	b.t.Helper()
	o, r := &openedPipelines{}, &reports{}
	s := cfg.NewSource(connector.Options{Report: r.report}).(*Source)
	s.takeMoreAtOnce()
	return s, o, r, background(b.t, func(ctx context.Context) error { return s.run(ctx, o.open) })
}

// takeMoreAtOnce has channels begin with several messages, for tests whose pipelines store none.
func (s *Source) takeMoreAtOnce() {
	for _, c := range s.consumers {
		c.prefetch.first = c.prefetch.countFor(assumedSize)
	}
}

// kill has the broker close the connections whose names contain text, and waits until there is one.
func (b *broker) kill(text string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) { // it may just be made again
		killed, err := b.tryKill(text)
		require.NoError(c, err)
		require.True(c, killed, "no connection of the name %s", text)
	}, waitTimeout, 5*time.Millisecond)
}

func (b *broker) tryKill(text string) (killed bool, err error) {
	list, err := b.Ctl(b.t.Context(), "list_connections", "pid", "client_properties")
	for line := range strings.Lines(list) {
		if pid, name, _ := strings.Cut(line, "\t"); err == nil && strings.Contains(name, text) {
			_, err = b.Ctl(b.t.Context(), "close_connection", pid, "test")
			killed = true
		}
	}
	return killed, err
}

// TestOnlyTheWatermarkIsAcknowledged, on a connection that the broker cuts; and a commit that comes
// late acknowledges nothing of the next one.
func TestOnlyTheWatermarkIsAcknowledged(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	b.publish(q, numberedMessages(0, 10)...)
	cfg := b.sourceConfig(q)
	cfg.Name = q
	s, pipelines, r, stop := b.source(cfg)
	first := pipelines.await(t, 0, 10)
	require.NoError(t, first.commitTo(3))
	lag, err := s.Lag(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 6, lag)

	b.kill(q)
	second := pipelines.await(t, 1, 6)
	assert.True(t, first.isAbandoned())
	assert.Equal(t, numberedTexts(4, 10), second.texts())
	assert.Equal(t, 6, int(testutil.ToFloat64(s.metrics.redelivered)))
	r.await(t, "<nil>")
	assert.Contains(t, r.texts()[1], "lost the connection to RabbitMQ at "+b.Addr())

	require.Error(t, first.commitTo(9), "a late commit of the first connection")
	require.NoError(t, second.commitTo(0))
	stop()
	assert.True(t, second.closed)
	require.Eventually(t, func() bool { return b.ready(q) == 5 }, waitTimeout, 5*time.Millisecond)
	assert.Equal(t, numberedTexts(5, 10), bodies(b.receive(q, 5)))
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	cfg := DefaultSinkConfig()
	cfg.URL, cfg.WindowBytes = "amqp://"+address, 1
	r := &reports{}
	s := cfg.NewSink(connector.Options{Report: r.report}).(*Sink)
	stop := background(t, s.Run)
	r.await(t, "cannot reach RabbitMQ at "+address)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	outcome := make(chan error, 4)
	s.Send(ctx, "q", text("x"), func(err error) { outcome <- err })
	require.ErrorIs(t, <-outcome, context.DeadlineExceeded)
	for range 4 { // one waits for the connection, the others for the window
		go s.Send(context.Background(), "q", text("x"), func(err error) { outcome <- err })
	}
	stop()
	for range 4 {
		require.ErrorIs(t, <-outcome, errStopped)
	}
}

type atomicInt struct{ n atomic.Int64 }

func (a *atomicInt) Store(n int64) { a.n.Store(n + 1) }
func (a *atomicInt) Load() int64   { return a.n.Load() - 1 } // -1 before the first
