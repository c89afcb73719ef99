package sonic

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/proxy"
)

// equal waits until two zones hold the same.
func equal(t testing.TB, a, b zone) map[string]held {
	t.Helper()
	both := func() []map[string]held {
		return []map[string]held{holdings(t, a.redis, 0), holdings(t, b.redis, 0)}
	}
	deadline := time.Now().Add(await.Patience)
	now := both()
	for len(differences(now)) > 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond) // polling a condition
		now = both()
	}
	require.Empty(t, differences(now))
	return now[0]
}

// flood writes rounds of all kinds, and returns how much it has added to the counters.
func flood(t testing.TB, c *redis.Client, rounds int) (added int64) {
	t.Helper()
	added, err := flooded(t.Context(), c, rounds)
	require.NoError(t, err)
	return added
}

func flooded(ctx context.Context, c *redis.Client, rounds int) (added int64, err error) {
	for round := range rounds {
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 20 {
				n := round*20 + i
				p.Set(ctx, fmt.Sprint("s", n%500), strings.Repeat("x", 500)+fmt.Sprint(n), 0)
				p.HSet(ctx, fmt.Sprint("h", n%10), fmt.Sprint("f", n%50), n)
				p.HDel(ctx, fmt.Sprint("h", n%10), fmt.Sprint("f", (n+25)%50))
				p.RPush(ctx, fmt.Sprint("l", n%3), n)
				p.SAdd(ctx, "set", n%100)
				p.SRem(ctx, "set", (n+50)%100)
				p.ZAdd(ctx, "z", redis.Z{Score: float64(n), Member: n % 100})
				p.Del(ctx, fmt.Sprint("s", (n+250)%500))
				p.Expire(ctx, fmt.Sprint("s", n%7), time.Hour)
				p.Set(ctx, fmt.Sprint("short", n%5), n, 50*time.Millisecond)
				p.IncrBy(ctx, "c:n", int64(i))
				p.HIncrBy(ctx, "c:h", fmt.Sprint(n%3), 1)
				added += int64(i)
			}
			return nil
		})
		if err != nil {
			return added, err
		}
	}
	return added, nil
}

const counters = `SONIC_CONFLICTS=[{prefix: "c:", policy: counter}]`

// While Pulsar is unavailable a zone takes writes past the bound of its outbox. Afterwards all that
// they changed is in the other zone, and counters are exact.
func TestWritesGoOnWhileTheOutboxIsFull(t *testing.T) {
	t.Parallel()
	url, pulsar, line := cluster(t)
	topic := "SONIC_TOPIC=persistent://" + pulsar.Namespace(t) + "/sonic"
	begin := func(name string, more ...string) zone {
		r := durable(t)
		return zone{run(t, append(more, "SONIC_ZONE="+name, "SONIC_ZONES=[a, b]", topic, counters, "SONIC_REDIS_URL="+r.URL())...), r}
	}
	a := begin("a", "SONIC_PULSAR_URL="+url, "SONIC_PULSAR_LISTENER_NAME="+proxy.Listener, "SONIC_OUTBOX_BYTES=1MiB", "SONIC_OUTBOX_FULL=drop")
	b := begin("b", "SONIC_PULSAR_URL="+pulsar.URL())
	for _, z := range []zone{a, b} {
		z.awaitWritable()
	}
	ctx, ca, cb := t.Context(), a.client(), b.client()
	added := flood(t, ca, 5)
	line.Cut()
	systems.Await(t, await.Patience, "the outbox is full", func() bool {
		added += flood(t, ca, 5)
		return a.zones().Outbox.Dropping
	})
	systems.Await(t, await.Patience, "it is shown that the outbox is full", func() bool {
		return a.zones().Outbox.Full && a.metric("sonic_outbox_dropping") > 0 && strings.Contains(a.Log(), "the outbox is full")
	})
	out := a.redis.Client(t)
	before := out.MemoryUsage(ctx, "{sonic:0}out").Val()
	added += flood(t, ca, 100)
	added += flood(t, cb, 1)
	noted := out.HLen(ctx, "{sonic:0}dropped").Val()
	added += flood(t, ca, 100)
	assert.Equal(t, noted, out.HLen(ctx, "{sonic:0}dropped").Val(), "it grows with what is written to, not with how often")
	assert.InDelta(t, before, out.MemoryUsage(ctx, "{sonic:0}out").Val(), 4096)

	require.NoError(t, line.Restore())
	added += flood(t, ca, 5)
	systems.Await(t, await.Patience, "all is shipped", func() bool {
		z := a.zones().Outbox
		return !z.Dropping && !z.Full && z.PendingResends == 0 && z.Length <= 2 && z.Unhealthy == ""
	})
	added += flood(t, ca, 1)
	held := equal(t, a, b)
	assert.Equal(t, strconv.FormatInt(added, 10), held["c:n"].content)
	assert.Greater(t, len(held), 200)
	assert.Zero(t, a.zones().Outbox.Lost)
	assert.Zero(t, a.metric(`sonic_gaps_total{origin="b"}`)+b.metric(`sonic_gaps_total{origin="a"}`))
}
