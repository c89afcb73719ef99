package messaging_test

import (
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// A topic ends with an entry that brings no message, and nothing is published for long. Then much
// is: the broker sends no more ahead than the reader's bound.
func TestReaderPrefetchIsBoundedBehindAnEntryThatBringsNoMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	client.HurryReaders(50)
	const size, ahead, messages = 4 << 10, 5, 300
	s.Publish(topic, batch(0, 1)...)
	s.PublishRaw(topic, messaging.WrongChecksum(), 1)
	r := openReader(t, client, func(c *messaging.ReaderConfig) {
		c.Name, c.PrefetchBytes, c.MaxMessageBytes = "state", ahead*size, size
	})
	next := func(i int) {
		t.Helper()
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), string(d.Payload[:len(strconv.Itoa(i))]))
	}
	next(0)
	eventually(t, "the queue is long", func() bool {
		return counted(t, reg, "aviary_messaging_reader_resubscribes_total", "state", "silent") >= 3
	})
	for i := range messages {
		payload := make([]byte, size)
		copy(payload, strconv.Itoa(1+i))
		s.Publish(topic, fakebroker.Message{Payload: payload})
	}
	next(1)
	// See TestReaderPrefetchIsBounded.
	require.NoError(t, s.Until(testContext(t), func() bool {
		all := s.Consumers(topic, "")
		return len(all) == 1 && all[0].Dispatched >= ahead && all[0].Permits <= 0
	}))
	require.LessOrEqual(t, s.Consumers(topic, "")[0].Dispatched, 2*ahead+3)
	for i := range messages - 1 {
		next(2 + i)
	}
}
