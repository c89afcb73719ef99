package fakebroker_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/fakebroker"
)

// Like client_producer_test.go, these tests record the behaviour of pulsar-client-go v0.21.0.

// closeWatch is a ConsumerCloseInterceptor.
type closeWatch struct{ cause chan error }

func (closeWatch) BeforeConsume(pulsar.ConsumerMessage)                   {}
func (closeWatch) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (closeWatch) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}
func (w closeWatch) OnConsumerClose(_ pulsar.Consumer, err error)         { w.cause <- err }
func (w closeWatch) wait(ctx context.Context) (cause error, closed bool) { //nolint:revive // the cause is the subject
	select {
	case err := <-w.cause:
		return err, true
	case <-ctx.Done():
		return ctx.Err(), false
	}
}

// These errors on reconnection close the whole consumer, all partitions, and tell the
// ConsumerCloseInterceptor why.
func TestClientErrorsThatCloseAConsumerForGood(t *testing.T) {
	for _, code := range []fakebroker.ServerError{
		fakebroker.ConsumerBusy, fakebroker.AuthorizationError, fakebroker.TopicNotFound, fakebroker.TopicTerminatedError,
		fakebroker.SubscriptionNotFound, fakebroker.InvalidTopicName, fakebroker.IncompatibleSchema, fakebroker.ConsumerAssignError,
		fakebroker.NotAllowedError,
	} {
		t.Run(code.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			s.CreateTopic("orders", 2)
			watch := closeWatch{make(chan error, 1)}
			c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
				Topic: "orders", SubscriptionName: "sub", Interceptors: pulsar.ConsumerInterceptors{watch},
			})
			// Subscribe still writes to the consumer when its partitions are connected already, and
			// the closing reads it unguarded: a round through the partitions' goroutines keeps the
			// two apart.
			_, err := c.GetLastMessageIDs()
			require.NoError(t, err)
			fail := s.FailSubscribe("orders-partition-1", code, fakebroker.Always)
			s.CloseConsumers("orders-partition-1")
			require.NoError(t, fail.Wait(ctx, 1))
			cause, closed := watch.wait(ctx)
			require.True(t, closed)
			require.ErrorContains(t, cause, "server error: "+code.String())
			require.NoError(t, s.WaitConsumers(ctx, "orders", "sub", 0))
			require.Equal(t, 1, fail.Hits(), "it does not try again")

			_, err = c.Receive(ctx)
			var pe *pulsar.Error
			require.ErrorAs(t, err, &pe)
			require.Equal(t, pulsar.ConsumerClosed, pe.Result())
		})
	}
}

func TestClientErrorsThatAConsumerRetries(t *testing.T) {
	for _, code := range []fakebroker.ServerError{
		fakebroker.ServiceNotReady, fakebroker.AuthenticationError, fakebroker.PersistenceError, fakebroker.MetadataError, fakebroker.TooManyRequests,
		fakebroker.ConsumerNotFound, fakebroker.UnknownError,
	} {
		t.Run(code.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "sub"})
			fail := s.FailSubscribe("orders", code, 3)
			s.CutConnections()
			require.NoError(t, fail.Wait(ctx, 3))
			require.NoError(t, s.WaitConsumers(ctx, "orders", "sub", 1))
			s.Publish("orders", numbered(1)...)
			receiveAll(ctx, t, c, 1)
		})
	}
}

// An entry with a wrong checksum is acknowledged by the client and never shown to the application:
// on a corruption between broker and client, which a second delivery would heal, the messages are
// lost. Of a corrupted batch only one permit is returned, whatever its size.
func TestClientAcksCorruptedEntries(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.PublishBatch("orders", fakebroker.None, numbered(5)...)
	s.Publish("orders", fakebroker.Message{Payload: []byte("after")})
	s.CorruptDispatch("orders", 1)
	c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	got := receiveAll(ctx, t, c, 1)
	require.Equal(t, "after", string(got[0].Payload()))
	require.NoError(t, s.WaitAcked(ctx, "orders", "sub", 5))
}

// Without AckWithResponse an ack that the server could not carry out goes unnoticed. With it, the
// error arrives.
func TestClientAckErrors(t *testing.T) {
	for name, wait := range map[string]bool{"with response": true, "without response": false} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			s.Publish("orders", numbered(1)...)
			c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
				Topic: "orders", SubscriptionName: "sub", AckWithResponse: wait,
				SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			})
			fail := s.FailAck("orders", fakebroker.PersistenceError, 1)
			err := c.Ack(receiveAll(ctx, t, c, 1)[0])
			require.NoError(t, fail.Wait(ctx, 1))
			if wait {
				require.ErrorContains(t, err, "PersistenceError")
			} else {
				require.NoError(t, err)
			}
			require.Zero(t, s.Acked("orders", "sub"))
		})
	}
}

// The error of the first subscription comes back as plain text and is not retried.
func TestClientFirstSubscriptionFails(t *testing.T) {
	s := fakebroker.Start(t)
	fail := s.FailSubscribe("orders", fakebroker.ConsumerBusy, 1)
	_, err := newClient(t, s).Subscribe(pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "sub"})
	require.ErrorContains(t, err, "server error: ConsumerBusy")
	require.Equal(t, 1, fail.Hits())
}

// Subscribe hangs for ever if one partition is disconnected while another is still subscribing and
// then fails: the partition's reconnection waits for its dispatcher, which is started only when all
// partitions have subscribed, and the failing Subscribe waits for the reconnection. A connection
// lost while subscribing is enough, about every second time. One Subscribe per partition has no
// such moment.
func TestClientSubscribeHangs(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.CreateTopic("orders", 2)
	never := s.Ignore(fakebroker.OpSubscribe, "orders-partition-1", 1)
	client := newClient(t, s)
	done := make(chan error, 1)
	go func() {
		_, err := client.Subscribe(pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "sub"})
		done <- err
	}()
	require.NoError(t, never.Wait(ctx, 1))
	require.NoError(t, s.WaitConsumers(ctx, "orders", "sub", 1))
	lookups := s.Received(fakebroker.CommandLookup)
	s.CloseConsumers("orders-partition-0")
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandLookup, lookups+1)) // it is reconnecting
	s.CutConnections()                                                           // fails the one that waits
	select {
	case err := <-done:
		t.Fatalf("Subscribe now returns: %v", err)
	case <-time.After(500 * time.Millisecond): // there is nothing to wait for: it is about what does not happen
	}
}
