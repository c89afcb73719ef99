package rabbitmq_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/test/stack"
)

// What a user may read and write is known before a message flows: none is taken, and none is
// stored.
func TestTryPermissions(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRabbitMQ(t)
	conn, err := amqp.Dial(srv.URL())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	var queues []rabbitmq.Queue
	for _, kind := range []string{"classic", "quorum", "stream"} {
		_, err = ch.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind})
		require.NoError(t, err)
		require.NoError(t, ch.QueueBind(kind, "#", "amq.topic", false, nil))
		require.NoError(t, ch.PublishWithContext(t.Context(), "", kind, false, false, amqp.Publishing{Body: []byte("v")}))
		queues = append(queues, rabbitmq.Queue{Name: kind})
	}
	_, err = srv.Ctl(t.Context(), "add_user", "app", "secret")
	require.NoError(t, err)
	try := func(configure, write, read string) (failed int, text string) {
		_, err := srv.Ctl(t.Context(), "set_permissions", "app", configure, write, read)
		require.NoError(t, err)
		in, out := rabbitmq.DefaultSourceConfig(), rabbitmq.DefaultSinkConfig()
		in.URL, in.Username, in.Password, in.Queues = "amqp://"+srv.Addr()+"/", "app", "secret", queues
		out.Connection = in.Connection
		source, end := in.Try("source")
		defer end()
		toQueue, end := out.Try("queue", []trial.Place{{Path: "to", Name: "classic"}})
		defer end()
		out.Exchange = "amq.topic"
		toExchange, end := out.Try("exchange", nil)
		defer end()
		var lines strings.Builder
		_, failed = trial.Run(t.Context(), []trial.Trial{source, toQueue, toExchange}, &lines)
		return failed, lines.String()
	}
	failed, text := try("^$", ".*", ".*")
	assert.Zero(t, failed, text)
	failed, text = try("^$", ".*", "^$")
	assert.Equal(t, 3, failed, text)
	assert.Contains(t, text, "source.queues[0] classic: failed: this user may not take from it: ACCESS_REFUSED - ")
	failed, text = try("^$", "^$", ".*")
	assert.Equal(t, 2, failed, text)
	assert.Contains(t, text, "to: queue classic: failed: this user may not publish there: ACCESS_REFUSED - ")
	assert.Contains(t, text, "exchange.exchange amq.topic: failed: this user may not publish there: ACCESS_REFUSED - ")

	for _, kind := range []string{"classic", "quorum"} {
		q, err := ch.QueueDeclarePassive(kind, true, false, false, false, nil)
		require.NoError(t, err)
		assert.Equal(t, 1, q.Messages, kind)
		one, ok, err := ch.Get(kind, true)
		require.NoError(t, err)
		assert.True(t, ok && !one.Redelivered, kind)
	}
}
