package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

type stored struct {
	key     string
	payload []byte
}

// readTopic returns what the topic holds now, each partition in its order.
func readTopic(t *testing.T, url, topic string) []stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster := messaging.DefaultConfig()
	cluster.URL = url
	client, err := messaging.Dial(ctx, cluster)
	require.NoError(t, err)
	defer func() { assert.NoError(t, client.Close(ctx)) }()
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{topic}, "test"
	cfg.Type, cfg.Order = messaging.Exclusive, messaging.OrderTotal
	consumer, err := client.Consumer(cfg)
	require.NoError(t, err)
	var all []stored
	n, err := consumer.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		all = append(all, stored{d.Key, d.Payload})
		return nil
	})
	require.NoError(t, err)
	require.Len(t, all, n)
	return all
}
