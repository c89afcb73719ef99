package rabbitmq

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/test/stack"
)

func requireRefused(t *testing.T, err error, reason, text string) {
	t.Helper()
	got, refused := pipeline.Refused(err)
	require.True(t, refused, "%v", err)
	require.Equal(t, reason, got)
	require.ErrorContains(t, err, text)
}

// TestUnroutable: among others that are routed, before, behind and at once.
func TestUnroutable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	cfg := b.sinkConfig()
	cfg.Channels = 1
	s, _, _ := b.sink(cfg)
	var o outcomes
	for i := range 3000 {
		to := q
		if i%3 == 1 {
			to = q + "-nowhere"
		}
		s.Send(t.Context(), to, text(strconv.Itoa(i)), o.done(i))
	}
	o.await(t, 3000)
	for i := range 3000 {
		if i%3 == 1 {
			requireRefused(t, o.outcome(i), refusedUnroutable, "nowhere")
		} else {
			require.NoError(t, o.outcome(i))
		}
	}
	assert.Len(t, b.receive(q, 2000), 2000)
	assert.Equal(t, 1000, int(testutil.ToFloat64(s.metrics.unroutable)))

	cfg.Mandatory = false
	s, _, _ = b.sink(cfg)
	require.NoError(t, send(t, s, q+"-nowhere", text("vanishes")))
}

// TestUnroutableByHeaders: one routing key, and the headers decide. Messages that differ in nothing
// else keep their own outcomes.
func TestUnroutableByHeaders(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q, exchange := b.queue(nil), b.Name(t)
	require.NoError(t, b.ch.ExchangeDeclare(exchange, amqp.ExchangeHeaders, false, true, false, false, nil))
	require.NoError(t, b.ch.QueueBind(q, "", exchange, false, amqp.Table{"go": true}))
	cfg := b.sinkConfig()
	cfg.Exchange = exchange
	s, _, _ := b.sink(cfg)
	var o outcomes
	for i := range 1000 {
		m := text("same")
		m.Headers = []message.Header{{Name: "go", Typed: i%2 == 0}, {Name: "n", Typed: int32(i)}, {Name: "t", Typed: time.Now().UTC()}}
		s.Send(t.Context(), "key", m, o.done(i))
	}
	o.await(t, 1000)
	for i := range 1000 {
		if i%2 == 0 {
			require.NoError(t, o.outcome(i))
		} else {
			requireRefused(t, o.outcome(i), refusedUnroutable, exchange)
		}
	}
	for _, d := range b.receive(q, 500) {
		assert.Zero(t, d.Headers["n"].(int32)%2)
	}
}

// TestReturnThatTheBrokerChanged: a plugin may change a message. A return that equals none belongs to
// the only unconfirmed message with its routing key.
func TestReturnThatTheBrokerChanged(t *testing.T) {
	pending := func(key, body string) pendingMessage {
		return pendingMessage{key: key, pub: amqp.Publishing{Body: []byte(body)}}
	}
	returned := amqp.Return{RoutingKey: "a", Body: []byte("1"), Headers: amqp.Table{"added": true}}
	for name, c := range map[string]struct {
		unconfirmed []pendingMessage
		ambiguous   bool
	}{
		"one with the key": {[]pendingMessage{pending("a", "1"), pending("b", "2")}, false},
		"two with the key": {[]pendingMessage{pending("a", "1"), pending("b", "2"), pending("a", "3")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := DefaultSinkConfig().NewSink(connector.Options{}).(*Sink)
			p := newPublisher(s, 0)
			p.unconfirmed.Push(c.unconfirmed...)
			err := p.assignReturn(returned)
			if c.ambiguous {
				assert.ErrorIs(t, err, errAmbiguous)
				return
			}
			require.NoError(t, err)
			requireRefused(t, p.unconfirmed.At(0).refusal, refusedUnroutable, "")
			assert.NoError(t, p.unconfirmed.At(1).refusal)
		})
	}
}

// TestReturnsOfEqualMessages: each return belongs to the first message that equals it and has none.
func TestReturnsOfEqualMessages(t *testing.T) {
	s := DefaultSinkConfig().NewSink(connector.Options{}).(*Sink)
	p := newPublisher(s, 0)
	for _, body := range []string{"other", "same", "same", "same"} {
		p.unconfirmed.Push(pendingMessage{key: "a", pub: amqp.Publishing{Body: []byte(body)}})
	}
	for range 2 {
		require.NoError(t, p.assignReturn(amqp.Return{RoutingKey: "a", Body: []byte("same")}))
	}
	for i, refused := range []bool{false, true, true, false} {
		assert.Equal(t, refused, p.unconfirmed.At(i).refusal != nil, i)
	}
	require.NoError(t, p.assignReturn(amqp.Return{RoutingKey: "b"}), "of no message")
}

// TestBrokerRefusesAMessage: RabbitMQ closes the channel over a user-id that is not the user's.
// Only that message is refused, the others arrive.
func TestBrokerRefusesAMessage(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q, out := b.queue(nil), b.queue(nil)
	cfg := b.sinkConfig()
	cfg.Impersonate = true
	_, err := b.Ctl(t.Context(), "add_user", q, "secret")
	require.NoError(t, err)
	_, err = b.Ctl(t.Context(), "set_permissions", q, ".*", ".*", ".*")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = b.Ctl(context.Background(), "delete_user", q) })
	cfg.Username, cfg.Password = q, "secret"
	s, _, _ := b.sink(cfg)
	again := map[int]int{}
	var pending []int
	for i := range 100 {
		pending = append(pending, i)
	}
	for len(pending) > 0 {
		var o outcomes
		for _, i := range pending {
			m := text(strconv.Itoa(i))
			m.AMQP = &message.AMQP{UserID: q}
			if i == 50 {
				m.AMQP.UserID = "somebody"
			}
			s.Send(t.Context(), out, m, o.done(i))
		}
		o.await(t, len(pending))
		all := pending
		pending = nil
		for _, i := range all {
			switch _, refused := pipeline.Refused(o.outcome(i)); {
			case refused:
				require.Equal(t, 50, i)
				requireRefused(t, o.outcome(i), refusedByBroker, "user_id")
			case o.outcome(i) != nil:
				pending = append(pending, i)
				again[i]++
			}
		}
	}
	got := map[string]bool{}
	for b.ready(out) > 0 {
		got[string(b.receive(out, 1)[0].Body)] = true
	}
	assert.Len(t, got, 99)
	assert.LessOrEqual(t, again[99], 3)
}

func TestForeignUserID(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	s, _, _ := b.sink(b.sinkConfig())
	m := text("x")
	m.AMQP = &message.AMQP{UserID: "somebody"}
	require.NoError(t, send(t, s, q, m))
	d := b.receive(q, 1)[0]
	assert.Empty(t, d.UserId)
	back := fromDelivery(&d, q, false, time.Now())
	assert.Equal(t, "somebody", back.AMQP.UserID)
	assert.Empty(t, back.Headers)
}

func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	cfg := b.sinkConfig()
	cfg.MaxMessageBytes = 1000
	s, _, _ := b.sink(cfg)
	long := strings.Repeat("x", 256)
	nested := any("x")
	for range 40 {
		nested = []any{nested}
	}
	many := make([]message.Header, 10_000)
	for i := range many {
		many[i] = message.Header{Name: fmt.Sprint("h", i), Value: []byte("v")}
	}
	for name, c := range map[string]struct {
		to     string
		m      message.Message
		reason string
	}{
		"body":             {q, message.Message{Value: make([]byte, 1001)}, refusedTooLarge},
		"routing key":      {long, message.Message{}, refusedProperty},
		"property":         {q, message.Message{AMQP: &message.AMQP{CorrelationID: long}}, refusedProperty},
		"expiration":       {q, message.Message{AMQP: &message.AMQP{Expiration: "soon"}}, refusedProperty},
		"header value":     {q, message.Message{Headers: []message.Header{{Name: "h", Typed: struct{}{}}}}, refusedHeader},
		"deep header":      {q, message.Message{Headers: []message.Header{{Name: "h", Typed: nested}}}, refusedHeader},
		"table name":       {q, message.Message{Headers: []message.Header{{Name: "h", Typed: message.Table{long: "x"}}}}, refusedHeader},
		"not a number":     {q, message.Message{Headers: []message.Header{{Name: "h", Typed: math.NaN()}}}, refusedHeader},
		"infinity":         {q, message.Message{Headers: []message.Header{{Name: "h", Typed: []any{float32(math.Inf(-1))}}}}, refusedHeader},
		"10,000 headers":   {q, message.Message{Headers: many}, refusedHeader},
		"128 KiB of them":  {q, message.Message{Headers: []message.Header{{Name: "h", Value: make([]byte, 128<<10)}}}, refusedTooLarge},
		"in a table, deep": {q, message.Message{Headers: []message.Header{{Name: "h", Typed: message.Table{"a": []any{long + strings.Repeat("y", 128<<10)}}}}}, refusedTooLarge},
	} {
		t.Run(name, func(t *testing.T) { requireRefused(t, send(t, s, c.to, &c.m), c.reason, "") })
	}
	few := message.Message{Headers: many[:8000]}
	require.NoError(t, send(t, s, q, &few))
	edge := message.Message{Headers: []message.Header{{Name: "h", Value: make([]byte, 128<<10-3000)}}}
	require.NoError(t, send(t, s, q, &edge))
	assert.Equal(t, "v", b.receive(q, 2)[0].Headers["h7999"])
}

// TestMemoryAlarm: Send waits, within its context, and all goes on by itself.
func TestMemoryAlarm(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.PrivateRabbitMQ(t))
	q := b.queue(nil)
	cfg := b.sinkConfig()
	cfg.Channels = 1
	s, r, stop := b.sink(cfg)
	require.NoError(t, send(t, s, q, text("before")))
	_, err := b.Ctl(t.Context(), "set_vm_memory_high_watermark", "0")
	require.NoError(t, err)
	var o outcomes
	s.Send(t.Context(), q, text("into the alarm"), o.done(0)) // the broker sends the alarm to publishers only
	r.await(t, "has an alarm and accepts no messages")
	assert.Equal(t, 1, int(testutil.ToFloat64(s.metrics.blocked)))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s.Send(ctx, q, text("given up"), o.done(1))
	require.ErrorIs(t, o.outcome(1), context.DeadlineExceeded)
	sent := make(chan struct{})
	go func() { s.Send(t.Context(), q, text("patient"), o.done(2)); close(sent) }()
	_, err = b.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.6")
	require.NoError(t, err)
	<-sent
	o.await(t, 3)
	require.NoError(t, o.outcome(0))
	require.NoError(t, o.outcome(2))
	r.await(t, "<nil>")
	assert.Equal(t, []string{"before", "into the alarm", "patient"}, bodies(b.receive(q, 3)))

	t.Run("stop", func(t *testing.T) {
		_, err := b.Ctl(t.Context(), "set_vm_memory_high_watermark", "0")
		require.NoError(t, err)
		big := &message.Message{Value: make([]byte, 1<<20)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i := 3; i < 40; i++ { // more than the sockets hold: they fill up before the alarm is heard of, or Send waits
			s.Send(ctx, q, big, o.done(i))
		}
		stop()
		assert.Equal(t, 40, o.count())
	})
}

// TestBrokerIsKilled and started again, under a sink and under a route.
func TestBrokerIsKilled(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRabbitMQ(t)
	t.Run("nothing confirmed is lost", func(t *testing.T) { nothingConfirmedIsLost(t, newBroker(t, srv)) })
	t.Run("through a restart", func(t *testing.T) { throughRestart(t, newBroker(t, srv)) })
}

// nothingConfirmedIsLost: each message arrives, those of one pipeline in order.
func nothingConfirmedIsLost(t *testing.T, b *broker) {
	t.Helper()
	const n = 20_000
	q := b.Name(t)
	b.declareDurable(q)
	s, r, _ := b.sink(b.sinkConfig())
	set := newSet(t, s, q)
	var committed atomicInt
	l := set.Open("test", func(p int64) error { committed.Store(p); return nil })
	defer l.Abandon()
	offered := make(chan error, 1)
	go func() {
		for i := range n {
			if err := l.Offer(t.Context(), text(strconv.Itoa(i)), int64(i)); err != nil {
				offered <- err
				return
			}
		}
		offered <- nil
	}()
	require.Eventually(t, func() bool { return committed.Load() > n/10 }, waitTimeout, time.Millisecond)
	sure := committed.Load()
	require.NoError(t, b.Kill())
	r.await(t, "cannot reach RabbitMQ")
	require.NoError(t, b.Start(t.Context()))
	require.NoError(t, <-offered)
	require.Eventually(t, func() bool { return committed.Load() == n-1 }, waitTimeout, 5*time.Millisecond)
	require.NoError(t, l.Close(t.Context()))
	t.Logf("killed after %d of %d were committed, sent again: %d", sure, n, set.State().Resent)

	b.connect()
	b.takeInOrder(q, n)
}

func TestMissingExchange(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	cfg := b.sinkConfig()
	cfg.Exchange = b.Name(t)
	cfg.Channels = 1
	s, r, _ := b.sink(cfg)
	r.await(t, fmt.Sprintf("exchange %q: does not exist", cfg.Exchange))
	require.NoError(t, b.ch.ExchangeDeclare(cfg.Exchange, amqp.ExchangeFanout, false, true, false, false, nil))
	q := b.queue(nil)
	require.NoError(t, b.ch.QueueBind(q, "", cfg.Exchange, false, nil))
	require.NoError(t, send(t, s, "", text("x")))
	assert.Equal(t, "<nil>", r.last())
}

func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	cfg := b.sinkConfig()
	cfg.Password = "sesame"
	_, r, _ := b.sink(cfg)
	r.await(t, `RabbitMQ at `+b.Addr()+`: closed the connection while user "guest" logged in: wrong user name or password`)
	cfg = b.sinkConfig()
	cfg.URL += "nowhere"
	_, r, _ = b.sink(cfg)
	r.await(t, `nowhere`)
	assert.NotContains(t, r.last(), "sesame")
}

// TestConnectionCut: the connection is cut under load, several times.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(nil)
	cfg := b.sinkConfig()
	cfg.Name = q
	s, _, _ := b.sink(cfg)
	set := newSet(t, s, q)
	var committed atomicInt
	l := set.Open("test", func(p int64) error { committed.Store(p); return nil })
	defer l.Abandon()
	const n = 20_000
	var cuts atomic.Int32
	var wg sync.WaitGroup
	for i := range n {
		require.NoError(t, l.Offer(t.Context(), text(strconv.Itoa(i)), int64(i)))
		if i%5000 == 2500 {
			wg.Go(func() {
				if killed, err := b.tryKill(q); killed && err == nil { // there may be none just now, or it may end by itself
					cuts.Add(1)
				}
			})
		}
	}
	wg.Wait()
	assert.Positive(t, cuts.Load())
	require.NoError(t, l.Close(t.Context()))
	assert.EqualValues(t, n-1, committed.Load())
	got := map[string]bool{}
	b.take(q, func(text string) bool { got[text] = true; return len(got) < n })
}
