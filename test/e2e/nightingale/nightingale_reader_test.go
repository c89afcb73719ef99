package nightingale_test

import (
	"context"
	"testing"

	"github.com/aviaryhq/aviary/test/systems/pulsar"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

type stored struct {
	key     string
	payload []byte
}

// readTopic returns what the topic holds now, each partition in its order.
func readTopic(t *testing.T, url, topic string) []stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
	defer cancel()
	var all []stored
	err := pulsar.ReadStored(ctx, url, messaging.ReaderConfig{Topic: topic}, func(d *messaging.Delivery) error {
		all = append(all, stored{d.Key, d.Payload})
		return nil
	})
	require.NoError(t, err)
	return all
}
