package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// BenchmarkShards measures what functions cost one Redis, and a primary of a Redis Cluster, in
// microseconds of its processor time.
func BenchmarkShards(b *testing.B) {
	const keys = 64
	value := strings.Repeat("v", 64)
	var names [keys]string
	for i := range names {
		names[i] = fmt.Sprintf("key:%d", i)
	}
	run := func(b *testing.B, c *redis.Client, clustered bool) {
		b.Helper()
		outOf := func(i int) string {
			if clustered {
				return script.SlotKeys(cluster.Slot([]byte(names[i%keys]))).Outbox
			}
			return script.KeysOf(0).Outbox
		}
		z := &zone{client: c}
		measure := func(name string, per int, call func(n int) []any) {
			b.Run(name, func(b *testing.B) {
				before := processorTime(b, z)
				for n := 0; n < b.N; {
					pipe := c.Pipeline()
					for range min(200, b.N-n) {
						pipe.Do(context.Background(), call(n)...)
						n++
					}
					if _, err := pipe.Exec(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric((processorTime(b, z)-before)*1e6/float64(b.N*per), "cpu-us/op")
			})
		}
		empty := func() {
			for i := range keys {
				if err := c.Do(context.Background(), "XTRIM", outOf(i), "MAXLEN", 0).Err(); err != nil {
					b.Fatal(err)
				}
			}
		}
		measure("set", 1, func(n int) []any { return []any{"FCALL", "sonic_set", 1, outOf(n), "0", names[n%keys], value} })
		empty()
		measure("many", keys, func(int) []any {
			call := []any{"FCALL", "sonic_many", 1, outOf(0), "0"}
			for i := range keys {
				call = append(call, "SET 2")
				if clustered {
					call = append(call, outOf(i))
				}
				call = append(call, names[i], value)
			}
			return call
		})
		empty()
		const entries = 20_000
		ship(b, c, z, clustered, entries, func(i int) []any { return []any{"FCALL", "sonic_set", 1, outOf(i), "0", names[i%keys], value} })
		for _, size := range []int{1, 8, 64} {
			at := uint64(size) * 1_000_000_000
			measure(fmt.Sprintf("apply of %d", size), size, func(n int) []any {
				var list []wire.Entry
				for range size {
					at++
					list = append(list, wire.Entry{ID: wire.ID{Ms: at}, Effects: packEffect([]string{"S", "l", "0", names[n%keys], value, ""})})
				}
				payload, _ := wire.Payload(list)
				return []any{"FCALL", "sonic_apply", 1, outOf(n), "b", 1, "0-0", list[size-1].ID.String(), "", 1, payload}
			})
		}
	}
	b.Run("one", func(b *testing.B) {
		w := newFixtureOf(b, rand.New(rand.NewPCG(1, 1)), []any{"lww"}, nil, "a", "b")
		run(b, w.zones[0].client, false)
	})
	b.Run("cluster", func(b *testing.B) {
		srv := stack.PrivateRedisCluster(b, 1, 0, "appendonly yes", "appendfsync no").Nodes()[0]
		c := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, PoolSize: 1})
		b.Cleanup(func() { _ = c.Close() })
		if err := script.Load(context.Background(), c); err != nil {
			b.Fatal(err)
		}
		if err := c.Do(context.Background(), "FCALL", "sonic_open_primary", 0, "a", "r", "0-0", 1, "b", "lww").Err(); err != nil {
			b.Fatal(err)
		}
		if err := c.Do(context.Background(), "FCALL", "sonic_take", 0, "reader", "again").Err(); err != nil {
			b.Fatal(err)
		}
		run(b, c, true)
	})
}

// ship measures reading entries, and removing them once they are shipped.
func ship(b *testing.B, c *redis.Client, z *zone, clustered bool, entries int, call func(n int) []any) {
	b.Helper()
	ctx := context.Background()
	b.Run("ship", func(b *testing.B) {
		sum, n := 0.0, 0
		for n < b.N {
			pipe := c.Pipeline()
			for i := range entries {
				pipe.Do(ctx, call(i)...)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				b.Fatal(err)
			}
			n += entries
			before := processorTime(b, z)
			if clustered {
				shipCluster(ctx, b, c)
			} else {
				shipOne(ctx, b, c)
			}
			sum += processorTime(b, z) - before
		}
		b.ReportMetric(sum*1e6/float64(n), "cpu-us/op")
	})
}

func shipCluster(ctx context.Context, b *testing.B, c *redis.Client) {
	b.Helper()
	for {
		reply, err := c.Do(ctx, "FCALL", "sonic_take", 0, "reader").Slice()
		if err != nil {
			b.Fatal(err)
		}
		shipped := []any{"FCALL", "sonic_shipped_all", 0}
		for i := 0; i+2 < len(reply); i += 3 {
			list := reply[i+2].([]any)
			shipped = append(shipped, reply[i], list[len(list)-1].([]any)[0])
		}
		if err := c.Do(ctx, shipped...).Err(); err != nil {
			b.Fatal(err)
		}
		if len(reply)%3 == 1 {
			return
		}
	}
}

func shipOne(ctx context.Context, b *testing.B, c *redis.Client) {
	b.Helper()
	out, from := script.KeysOf(0).Outbox, "-"
	for {
		list, err := c.XRangeN(ctx, out, from, "+", 1000).Result()
		if err != nil {
			b.Fatal(err)
		}
		if len(list) == 0 {
			return
		}
		last := list[len(list)-1].ID
		from = "(" + last
		if err := c.Do(ctx, "FCALL", "sonic_shipped", 1, out, last).Err(); err != nil {
			b.Fatal(err)
		}
	}
}
