package stack

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack/process"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func rabbitChannel(t *testing.T, url string) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	return conn, ch
}

func rabbitPublish(t *testing.T, ch *amqp.Channel, queue, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(text)})
	require.NoError(t, err)
	acked, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	require.True(t, acked)
}

// rabbitMQAnswers is a part of TestUpAndDown.
func rabbitMQAnswers(t *testing.T, lines []string) {
	t.Helper()
	line := lines[0]
	url, found := strings.CutPrefix(line, "RABBITMQ_URL=")
	require.True(t, found, line)
	t.Setenv("AVIARY_TEST_RABBITMQ_URL", url)
	srv := RabbitMQ(t)
	assert.Equal(t, url, srv.URL())
	require.ErrorIs(t, srv.Kill(), process.ErrNotOwned)
	_, err := srv.Ctl(t.Context(), "status")
	require.ErrorContains(t, err, "AVIARY_TEST_RABBITMQ_URL")
}

func TestPrivateRabbitMQThroughFaults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := PrivateRabbitMQ(t, Conf(map[string]string{"heartbeat": "7"}))
	conn, ch := rabbitChannel(t, srv.URL())
	assert.Equal(t, 7*time.Second, conn.Config.Heartbeat)
	queue := srv.Name(t)
	_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	srv.WriteDefinitions(t)
	rabbitPublish(t, ch, queue, "first")

	t.Run("kill and start", func(t *testing.T) {
		pid := srv.PID()
		require.NotZero(t, pid)
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Kill(), "twice")
		require.Error(t, rabbitMQHealthy(srv.URL()))
		require.NoError(t, srv.Start(ctx))
		assert.NotEqual(t, pid, srv.PID())
		_, ch := rabbitChannel(t, srv.URL())
		m, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		require.True(t, ok, "same data")
		assert.Equal(t, "first", string(m.Body))
	})
	t.Run("memory alarm", func(t *testing.T) {
		conn, ch := rabbitChannel(t, srv.URL())
		blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 10))
		_, err := srv.Ctl(ctx, "set_vm_memory_high_watermark", "0")
		require.NoError(t, err)
		// Only a connection that publishes is told.
		require.NoError(t, ch.PublishWithContext(ctx, "", queue, false, false, amqp.Publishing{Body: []byte("x")}))
		require.True(t, (<-blocked).Active)
		_, err = srv.Ctl(ctx, "set_vm_memory_high_watermark", "0.4")
		require.NoError(t, err)
		require.False(t, (<-blocked).Active)
		rabbitPublish(t, ch, queue, "after")
		out, err := srv.Ctl(ctx, "eval", "1 + 1.")
		require.NoError(t, err)
		assert.Equal(t, "2", out)
		_, err = srv.Ctl(ctx, "no_such_command")
		require.ErrorContains(t, err, "no_such_command")
	})
	t.Run("stream", func(t *testing.T) {
		_, ch := rabbitChannel(t, srv.URL())
		stream := srv.Name(t)
		_, err := ch.QueueDeclare(stream, true, false, false, false, amqp.Table{"x-queue-type": "stream"})
		require.NoError(t, err)
		for _, text := range []string{"s0", "s1", "s2"} {
			rabbitPublish(t, ch, stream, text)
		}
		require.NoError(t, ch.Qos(10, 0, false))
		deliveries, err := ch.ConsumeWithContext(ctx, stream, "", false, false, false, false, amqp.Table{"x-stream-offset": int64(1)})
		require.NoError(t, err)
		d := <-deliveries
		assert.Equal(t, "s1", string(d.Body))
		assert.EqualValues(t, 1, d.Headers["x-stream-offset"])
	})
	t.Run("pause and resume", func(t *testing.T) {
		require.NoError(t, srv.Pause())
		_, err := amqp.DialConfig(srv.URL(), amqp.Config{Dial: amqp.DefaultDial(300 * time.Millisecond)})
		require.Error(t, err)
		require.NoError(t, srv.Resume())
		require.NoError(t, rabbitMQHealthy(srv.URL()))
	})
	t.Run("stop and start", func(t *testing.T) {
		require.NoError(t, srv.Stop(ctx))
		require.NoError(t, srv.Stop(ctx), "twice")
		require.NoError(t, srv.Start(ctx))
		require.NoError(t, rabbitMQHealthy(srv.URL()))
	})
	left, err := filepath.Glob(filepath.Join(srv.dir, "logs", "erl_crash.dump"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
