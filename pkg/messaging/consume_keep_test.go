package messaging_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// A delivery belongs to its handler: nothing of it changes when the library uses its own part of
// the message again.
func TestHandlersMayKeepDeliveries(t *testing.T) {
	t.Parallel()
	for _, order := range []messaging.Order{messaging.OrderKey, messaging.OrderPartition, messaging.OrderTotal} {
		t.Run(string(order), func(t *testing.T) {
			s := fakebroker.Start(t)
			client := dial(t, s.URL())
			const n = 5000
			publish(t, client, topic, n, true)
			var mu sync.Mutex
			kept := make(map[*messaging.Delivery]messaging.Delivery)
			cfg := consumerConfig(topic, messaging.Exclusive)
			cfg.Order, cfg.PrefetchMessages = order, 200 // used again 25 times
			c, err := client.Consumer(cfg)
			require.NoError(t, err)
			handled, err := c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				kept[d] = *d
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, n, handled)
			payloads := make(map[string]bool)
			for d, then := range kept {
				require.Equal(t, then, *d)
				i, err := strconv.Atoi(string(d.Payload))
				require.NoError(t, err)
				require.Equal(t, "k"+strconv.Itoa(i%7), d.Key)
				payloads[string(d.Payload)] = true
			}
			require.Len(t, payloads, n, "each has a delivery of its own")
		})
	}
}
