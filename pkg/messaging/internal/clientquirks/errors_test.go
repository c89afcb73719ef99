package clientquirks_test

import (
	"errors"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

func TestErrorsOfProducers(t *testing.T) {
	s := start(t, fakebroker.WithMaxMessageSize(1000))
	c := connect(t, s.URL(), nil)
	for name, batch := range map[string]bool{"alone": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			p := produce(t, c, func(o *pulsar.ProducerOptions) { o.DisableBatching, o.BatchingMaxSize = !batch, 1<<20 })
			_, err := p.Send(patient(t), &pulsar.ProducerMessage{Payload: make([]byte, 2000)})
			require.Equal(t, clientquirks.TooLarge, clientquirks.Classify(err), err)
		})
	}
	for code, want := range map[fakebroker.ServerError]clientquirks.Class{
		fakebroker.TopicTerminatedError: clientquirks.Terminated,
		fakebroker.ProducerBusy:         clientquirks.Retriable,
		fakebroker.ProducerFenced:       clientquirks.Retriable,
	} {
		s.FailProducerCreate(topic, code, 1)
		_, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		require.Error(t, err)
		require.Equal(t, want, clientquirks.Classify(err), err)
	}
	require.Equal(t, clientquirks.Terminated, clientquirks.Classify(errors.Join(pulsar.ErrTopicTerminated, errors.New("text"))))
}

func TestErrorsOfConsumers(t *testing.T) {
	s := start(t)
	c := connect(t, s.URL(), nil)
	for code, want := range map[fakebroker.ServerError]struct {
		permanent bool
		reason    string
	}{
		fakebroker.InvalidTopicName:   {true, "closed"},
		fakebroker.IncompatibleSchema: {true, "closed"},
		fakebroker.NotAllowedError:    {true, "closed"},
		fakebroker.ConsumerBusy:       {false, "busy"},
		fakebroker.AuthorizationError: {false, "unauthorized"},
		fakebroker.TopicNotFound:      {false, "topic_not_found"},
		fakebroker.ServiceNotReady:    {false, "closed"},
	} {
		s.FailSubscribe(topic, code, 1)
		_, err := c.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub"})
		require.Error(t, err)
		require.Equal(t, want.permanent, clientquirks.Permanent(err), err)
		require.Equal(t, want.reason, clientquirks.CloseReason(err), err)
	}
	for _, name := range []string{"a/b", "a://b/c/d", "persistent://a"} {
		_, err := c.Subscribe(pulsar.ConsumerOptions{Topic: name, SubscriptionName: "sub"})
		require.True(t, clientquirks.Permanent(err), err)
	}
	_, err := c.CreateReader(pulsar.ReaderOptions{Topic: topic})
	require.True(t, clientquirks.Permanent(err), err)
}
