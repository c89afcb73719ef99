package sonic

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestMessagesReachOtherZones: with publish: replicate the subscribers of all zones get each message
// once, however it was published.
func TestMessagesReachOtherZones(t *testing.T) {
	t.Parallel()
	a, b := pair(t, "SONIC_PUBLISH=replicate")
	subscribe := func(z zone) *redis.PubSub {
		s := z.client().PSubscribe(t.Context(), "ch*")
		t.Cleanup(func() { _ = s.Close() })
		_, err := s.Receive(t.Context())
		require.NoError(t, err)
		return s
	}
	subscribers := []*redis.PubSub{subscribe(a), subscribe(b)}
	for _, z := range []zone{a, b} {
		c := z.client()
		require.NoError(t, c.FunctionLoadReplace(t.Context(), "#!lua name=mine\nredis.register_function('pub', function(k, a) return redis.call('publish', a[1], a[2]) end)").Err())
		require.NoError(t, c.Publish(t.Context(), "ch", "1").Err())
		require.NoError(t, c.Eval(t.Context(), "for i = 2, #ARGV do redis.call('publish', ARGV[i], ARGV[1]) end return 1", nil, "2", "ch1", "ch2").Err())
		require.NoError(t, c.Eval(t.Context(), "redis.call('del', KEYS[1]) return redis.call(ARGV[1], KEYS[2], '3')", []string{"lock", "ch"}, "publish").Err())
		require.NoError(t, c.FCall(t.Context(), "pub", nil, "ch", "4").Err())
		_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.FCall(t.Context(), "pub", nil, "ch", "5")
			p.Publish(t.Context(), "ch", "6")
			return nil
		})
		require.NoError(t, err)
		for _, s := range subscribers {
			for _, want := range []string{"ch 1", "ch1 2", "ch2 2", "ch 3", "ch 4", "ch 5", "ch 6"} {
				got, err := s.ReceiveMessage(t.Context())
				require.NoError(t, err)
				require.Equal(t, want, got.Channel+" "+got.Payload)
			}
		}
	}
}
