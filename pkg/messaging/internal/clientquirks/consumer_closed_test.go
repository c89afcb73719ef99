package clientquirks_test

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

func watched(t *testing.T, s *fakebroker.Server, w *clientquirks.CloseWatch) pulsar.Consumer {
	t.Helper()
	return subscribe(t, connect(t, s.URL(), nil), func(o *pulsar.ConsumerOptions) {
		o.Interceptors = pulsar.ConsumerInterceptors{w}
	})
}

func TestWatchKnowsWhyTheBrokerClosedAConsumer(t *testing.T) {
	s := start(t)
	w := clientquirks.NewCloseWatch()
	consumer := watched(t, s, w)
	_, err := consumer.GetLastMessageIDs() // Subscribe still sets fields when the broker knows the consumer
	require.NoError(t, err)
	require.False(t, closed(w.Closed))
	s.FailSubscribe(topic, fakebroker.ConsumerBusy, fakebroker.Always)
	s.CloseConsumers(topic)
	eventually(t, "it is told", func() bool { return closed(w.Closed) })
	require.Equal(t, "busy", clientquirks.CloseReason(w.Err()))
}

func TestWatchDoesNotReportOurOwnClose(t *testing.T) {
	s := start(t)
	w := clientquirks.NewCloseWatch()
	watched(t, s, w).Close()
	require.False(t, closed(w.Closed))
}
