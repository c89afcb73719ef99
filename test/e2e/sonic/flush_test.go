package sonic

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"
)

// held is what a zone's Redis holds of strings, hashes and lists, by key.
func (z zone) held(ctx context.Context) (map[string]string, error) {
	c, all := z.redis.Client(z.t), map[string]string{}
	defer func() { _ = c.Close() }()
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		switch {
		case strings.HasPrefix(key, "{sonic:"):
		case strings.HasPrefix(key, "h"):
			all[key] = fmt.Sprint(c.HGetAll(ctx, key).Val())
		case strings.HasPrefix(key, "l"):
			all[key] = fmt.Sprint(c.LRange(ctx, key, 0, -1).Val())
		default:
			all[key] = c.Get(ctx, key).Val()
		}
	}
	return all, nil
}

// A client flushes in one zone while another one writes in the other. Both zones are equal in the
// end, key by key, and have what was written behind the last flush.
func TestFlushWhileAnotherZoneWrites(t *testing.T) {
	t.Parallel()
	a, b := pair(t, "SONIC_FLUSH=replicate")
	ctx := t.Context()
	ca, cb := a.client(), b.client()
	var written atomic.Int64
	var writing sync.WaitGroup
	stop := make(chan struct{})
	writing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			_, err := cb.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, fmt.Sprintf("s%d", n%50), n, 0)
				p.HSet(ctx, fmt.Sprintf("h%d", n%5), fmt.Sprintf("f%d", n%50), n)
				p.RPush(ctx, fmt.Sprintf("l%d", n%5), n)
				p.LTrim(ctx, fmt.Sprintf("l%d", n%5), -10, -1)
				return nil
			})
			if !assert.NoError(t, err) {
				return
			}
			written.Add(1)
		}
	})
	for i := range 10 {
		before := written.Load()
		systems.Await(t, await.Patience, "the other zone writes", func() bool { return t.Failed() || written.Load() >= before+30 })
		require.NoError(t, ca.Set(ctx, "mine", i, 0).Err())
		if i%2 == 0 {
			require.NoError(t, ca.FlushDB(ctx).Err())
		} else {
			require.NoError(t, ca.FlushAllAsync(ctx).Err())
		}
	}
	close(stop)
	writing.Wait()
	awaitCrossed(t, a, b) // the flushes are in both zones
	require.NoError(t, cb.Set(ctx, "end", "1", 0).Err())
	systems.Await(t, await.Patience, "both zones hold the same", func() bool {
		ha, err := a.held(ctx)
		require.NoError(t, err)
		hb, err := b.held(ctx)
		require.NoError(t, err)
		return ha["end"] == "1" && maps.Equal(ha, hb)
	})
	assert.Zero(t, ca.Exists(ctx, "mine").Val())
	assert.Zero(t, a.metric(`sonic_applied_effects_total{origin="b",outcome="diverged"}`)+b.metric(`sonic_applied_effects_total{origin="a",outcome="diverged"}`))
}
