package messaging_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/wire"
)

// A publisher that is to fail on loss tells every record its outcome, in order, and
// sends none of them twice.
func TestLossIsFinalWhenAskedFor(t *testing.T) {
	s := wire.Start(t)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) {
		p.OnLoss, p.Access, p.ProducerName = messaging.FailOnLoss, messaging.ExclusiveAccess, "one"
	})
	require.NoError(t, p.Publish(testContext(t), record(0)))
	hold := s.HoldReceipts(topic)
	outcomes := make(chan error, 20)
	for i := 1; i <= 20; i++ {
		p.PublishAsync(testContext(t), record(i), func(_ messaging.MessageID, err error) { outcomes <- err })
	}
	require.NoError(t, s.Until(testContext(t), func() bool { return s.Count(topic) == 21 }))
	hold.Forget()
	fail := s.FailProducerCreate(topic, wire.ProducerFenced, 1)
	s.CutConnections()
	for range 20 {
		require.ErrorIs(t, <-outcomes, messaging.ErrProducerLost)
	}
	require.NoError(t, fail.Wait(testContext(t), 1))
	require.ErrorIs(t, p.Publish(testContext(t), record(21)), messaging.ErrProducerLost)
	require.ErrorIs(t, p.Trouble(), messaging.ErrProducerLost)
	require.NoError(t, p.Close(testContext(t)))
	require.Equal(t, 21, s.Count(topic), "nothing was sent again")
}

func TestLast(t *testing.T) {
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, batched := range []bool{true, false} {
		t.Run("batched="+strconv.FormatBool(batched), func(t *testing.T) {
			topic := srv.Topic(t, ns, 0)
			d, err := client.Last(testContext(t), topic)
			require.NoError(t, err)
			require.Nil(t, d)
			for _, n := range []int{1, 2, 500} {
				publish(t, client, topic, n, batched)
				d, err = client.Last(testContext(t), topic)
				require.NoError(t, err)
				require.Equal(t, strconv.Itoa(n-1), string(d.Payload))
				require.Equal(t, record(n-1).Key, d.Key)
				require.NotEmpty(t, d.ProducerName)
			}
		})
	}
	t.Run("one of several", func(t *testing.T) {
		topic := srv.Topic(t, ns, 3)
		publish(t, client, topic+"-partition-2", 10, true)
		d, err := client.Last(testContext(t), topic+"-partition-2")
		require.NoError(t, err)
		require.Equal(t, "9", string(d.Payload))
		d, err = client.Last(testContext(t), topic+"-partition-1")
		require.NoError(t, err)
		require.Nil(t, d)
		_, err = client.Last(testContext(t), topic)
		require.ErrorContains(t, err, "3 partitions")
	})
	t.Run("nobody there", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := dial(t, "pulsar://127.0.0.1:1").Last(ctx, "t")
		require.Error(t, err)
	})
}
