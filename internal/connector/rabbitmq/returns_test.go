package rabbitmq

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/test/stack"
)

// While the sink is unavailable a quorum queue gets one message back at each start, and at each end
// of a channel, not all that a channel may have: the others come no nearer to the delivery limit.
func TestStartsWhileTheSinkIsUnavailable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	q := b.queue(amqp.Table{argQueueType: typeQuorum, "x-delivery-limit": int32(4)})
	b.publish(q, numberedMessages(0, 20)...)
	cfg := b.sourceConfig(q)
	cfg.Name = q
	for range 2 {
		l := new(unavailablePipeline)
		s := cfg.NewSource(connector.Options{}).(*Source)
		stop := background(t, func(ctx context.Context) error {
			return s.run(ctx, func(string, int, func(int64) error) sourcePipeline { return l })
		})
		require.Eventually(t, func() bool { return l.waited.Load() == 1 }, waitTimeout, time.Millisecond)
		b.kill(q)
		require.Eventually(t, func() bool { return l.waited.Load() == 2 }, waitTimeout, time.Millisecond)
		require.Equal(t, 2, l.count())
		stop()
		require.Eventually(t, func() bool { return b.ready(q) == 20 }, waitTimeout, time.Millisecond)
	}
	ds := b.receive(q, 20)
	assert.EqualValues(t, 4, ds[0].Headers[headerDeliveryCount])
	for _, d := range ds[1:] {
		assert.EqualValues(t, 0, d.Headers[headerDeliveryCount], string(d.Body))
	}
}

// unavailablePipeline is a pipeline whose sink is unavailable: it is never drained.
type unavailablePipeline struct {
	manualPipeline

	waited atomic.Int64 // calls of Drain that have ended
}

func (l *unavailablePipeline) Drain(ctx context.Context) error {
	defer l.waited.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

// Headers that RabbitMQ sets are forwarded with a prefix: a forwarded x-death would make a broker
// drop the message as one in a cycle.
func TestBrokerHeadersGetAPrefix(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	dead, out := b.queue(nil), b.queue(nil)
	in := b.queue(amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	b.publish(in, amqp.Publishing{Body: []byte("0"), Headers: amqp.Table{"own": "kept", message.Prefix + "x-death": "old"}})
	require.NoError(t, onChannel(b.conn, func(ch *amqp.Channel) error {
		d, ok, err := ch.Get(in, false)
		require.True(t, ok)
		require.NoError(t, err)
		return d.Reject(false)
	}))
	b.route(b.sourceConfig(dead), b.sinkConfig(), out)
	d := b.receive(out, 1)[0]
	assert.Equal(t, "kept", d.Headers["own"])
	for name := range d.Headers {
		assert.False(t, message.IsBrokerHeader(name), name)
	}
	assert.Equal(t, in, d.Headers[message.Prefix+"x-first-death-queue"])
	deaths, _ := d.Headers[message.Prefix+"x-death"].([]any)
	require.Len(t, deaths, 1, "the newest")
}

// TestSendersDoNotChooseFurtherQueues: RabbitMQ routes copies by the headers CC and BCC.
func TestSendersDoNotChooseFurtherQueues(t *testing.T) {
	t.Parallel()
	b := newBroker(t, stack.RabbitMQ(t))
	in, out, other := b.queue(nil), b.queue(nil), b.queue(nil)
	sink, _, _ := b.sink(b.sinkConfig())
	for _, name := range []string{"CC", "BCC"} {
		m := text("from elsewhere")
		m.Headers = []message.Header{{Name: name, Typed: []any{other}}}
		require.NoError(t, send(t, sink, out, m))
	}
	b.publish(in, amqp.Publishing{Body: []byte("from RabbitMQ"), Headers: amqp.Table{"CC": []any{"nowhere"}}})
	b.route(b.sourceConfig(in), b.sinkConfig(), out)
	got := b.receive(out, 3)
	assert.Equal(t, []string{"from elsewhere", "from elsewhere", "from RabbitMQ"}, bodies(got))
	assert.Equal(t, []any{"nowhere"}, got[2].Headers[message.Prefix+"CC"])
	assert.NotContains(t, got[2].Headers, "CC")
	require.NoError(t, onChannel(b.conn, func(ch *amqp.Channel) error {
		_, found, err := ch.Get(other, true)
		assert.False(t, found)
		return err
	}))
}
