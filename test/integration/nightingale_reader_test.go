package integration

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"
)

type stored struct {
	key     string
	payload []byte
}

// readTopic returns what the topic holds now, each partition in its order.
func readTopic(t *testing.T, url, topic string) []stored {
	t.Helper()
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url})
	require.NoError(t, err)
	defer client.Close()
	r, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	require.NoError(t, err)
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []stored
	for r.HasNext() {
		m, err := r.Next(ctx)
		require.NoError(t, err)
		all = append(all, stored{m.Key(), m.Payload()})
	}
	return all
}
