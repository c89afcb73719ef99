package clientquirks_test

import (
	"errors"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/wire"
)

func TestErrorsOfProducers(t *testing.T) {
	s := start(t, wire.WithMaxMessageSize(1000))
	c := connect(t, s.URL(), nil)
	for name, batch := range map[string]bool{"alone": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			p := produce(t, c, func(o *pulsar.ProducerOptions) { o.DisableBatching, o.BatchingMaxSize = !batch, 1<<20 })
			_, err := p.Send(patient(t), &pulsar.ProducerMessage{Payload: make([]byte, 2000)})
			require.Equal(t, clientquirks.TooLarge, clientquirks.Classify(err), err)
		})
	}
	for code, want := range map[wire.ServerError]clientquirks.Class{
		wire.TopicTerminatedError: clientquirks.Terminated,
		wire.ProducerBusy:         clientquirks.Retriable,
		wire.ProducerFenced:       clientquirks.Retriable,
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
	for code, want := range map[wire.ServerError]struct {
		permanent bool
		reason    string
	}{
		wire.InvalidTopicName:   {true, "closed"},
		wire.IncompatibleSchema: {true, "closed"},
		wire.NotAllowedError:    {true, "closed"},
		wire.ConsumerBusy:       {false, "busy"},
		wire.AuthorizationError: {false, "unauthorized"},
		wire.TopicNotFound:      {false, "topic_not_found"},
		wire.ServiceNotReady:    {false, "closed"},
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
