package proxy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
)

// awaitBlocked waits until that many clients are blocked.
func (e *endpoint) awaitBlocked(t *testing.T, n int) {
	t.Helper()
	c := dial(t, e.addr)
	require.Eventually(t, func() bool { return blocked(c.ask(t, "CLIENT", "LIST")) == n }, await.Patience, time.Millisecond, "%d blocked clients", n)
}

func blocked(list string) (n int) {
	for i := range list {
		if len(list)-i >= 8 && list[i:i+8] == "flags=b " {
			n++
		}
	}
	return n
}

// tracked waits until Redis tells of changes of so many keys.
func (e *endpoint) awaitTracked(t *testing.T, n int64) {
	t.Helper()
	client := e.redis.Client(t)
	require.Eventually(t, func() bool {
		info, err := client.InfoMap(t.Context(), "stats").Result()
		return err == nil && info["Stats"]["tracking_total_keys"] == fmt.Sprint(n)
	}, await.Patience, time.Millisecond, "%d tracked keys", n)
}

// awaitPops waits until Redis has run LPOP n times. A command that blocks runs it twice: before and
// after Redis tracks its keys.
func (e *endpoint) awaitPops(t *testing.T, n int) {
	t.Helper()
	client := e.redis.Client(t)
	require.Eventually(t, func() bool {
		info, err := client.InfoMap(t.Context(), "commandstats").Result()
		return err == nil && strings.HasPrefix(info["Commandstats"]["cmdstat_lpop"], fmt.Sprintf("calls=%d,", n))
	}, await.Patience, time.Millisecond, "%d pops", n)
}

func TestBlockingPops(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	pusher := e.client(t, 2)
	for _, proto := range []string{"2", "3"} {
		for _, tc := range []struct {
			block, push []string
			want        string
		}{
			{[]string{"blpop", "none", "l", "0"}, []string{"rpush", "l", "a"}, "*2\r\n$1\r\nl\r\n$1\r\na\r\n"},
			{[]string{"brpop", "l", "0"}, []string{"rpush", "l", "a", "b"}, "*2\r\n$1\r\nl\r\n$1\r\nb\r\n"},
			{[]string{"blmove", "l", "m", "left", "right", "0"}, []string{"lpush", "l", "x"}, "$1\r\nx\r\n"},
			{[]string{"brpoplpush", "l", "m", "0"}, []string{"lpush", "l", "x"}, "$1\r\nx\r\n"},
			{[]string{"blmpop", "0", "2", "none", "l", "left", "count", "2"}, []string{"rpush", "l", "a", "b"}, "*2\r\n$1\r\nl\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
		} {
			require.NoError(t, pusher.Del(t.Context(), "l", "m").Err())
			c := dial(t, e.addr)
			c.ask(t, "HELLO", proto)
			c.send(t, string(resp.AppendCommand(nil, tc.block...)))
			e.awaitBlocked(t, 1)
			require.NoError(t, pusher.Do(t.Context(), anys(tc.push)...).Err())
			got, err := c.reply()
			require.NoError(t, err)
			assert.Equal(t, tc.want, got, "%q", tc.block)
			require.NoError(t, c.Close())
		}
	}
}

func anys(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}

// A command that waits gets an error if its destination is of the wrong type, and takes nothing. A
// source of the wrong type it ignores.
func TestBlockedClientWithADestinationOfTheWrongType(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	pusher := e.client(t, 2)
	for _, command := range [][]string{{"brpoplpush", "l", "text", "0"}, {"blmove", "l", "text", "left", "right", "0"}} {
		require.NoError(t, pusher.Del(t.Context(), "l").Err())
		require.NoError(t, pusher.Set(t.Context(), "text", "x", 0).Err())
		c := dial(t, e.addr)
		c.send(t, string(resp.AppendCommand(nil, command...)))
		e.awaitBlocked(t, 1)
		e.awaitTracked(t, 1)
		require.NoError(t, pusher.Set(t.Context(), "l", "x", 0).Err())
		require.NoError(t, pusher.Del(t.Context(), "l").Err())
		require.NoError(t, pusher.RPush(t.Context(), "l", "a").Err())
		got, err := c.reply()
		require.NoError(t, err)
		assert.Equal(t, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", got)
		assert.Equal(t, []string{"a"}, pusher.LRange(t.Context(), "l", 0, -1).Val())
		assert.Equal(t, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", c.ask(t, command...), "it need not wait")
	}
}

// TestBlockedClientsAreServedInTurn has several clients wait; one push with an element for each of
// them wakes all.
func TestBlockedClientsAreServedInTurn(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	const n = 20
	var waiting []*connection
	for i := range n {
		c := dial(t, e.addr)
		c.send(t, "blpop l 0\r\n")
		e.awaitBlocked(t, i+1)
		e.awaitPops(t, 2*(i+1)) // one that still tries may be served before those that wait
		waiting = append(waiting, c)
	}
	push := []any{"rpush", "l"}
	for i := range n {
		push = append(push, i)
	}
	require.NoError(t, e.client(t, 3).Do(t.Context(), push...).Err())
	for i, c := range waiting {
		got, err := c.reply()
		require.NoError(t, err)
		text := fmt.Sprint(i)
		assert.Equal(t, fmt.Sprintf("*2\r\n$1\r\nl\r\n$%d\r\n%s\r\n", len(text), text), got)
	}
}

// TestBlockedClientThatEnds loses no element: the next one gets it.
func TestBlockedClientThatEnds(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	first, second := dial(t, e.addr), dial(t, e.addr)
	first.send(t, "blpop l 0\r\n")
	e.awaitBlocked(t, 1)
	second.send(t, "blpop l 0\r\nping\r\n")
	e.awaitBlocked(t, 2)
	require.NoError(t, first.Close())
	e.awaitBlocked(t, 1)
	// A try of the first one that was on its way has ended, too: it came before this on the same
	// connection.
	require.Equal(t, "$-1\r\n", dial(t, e.addr).ask(t, "GET", "none"))
	// Written at Redis itself, as by the applier.
	require.NoError(t, e.redis.Client(t).RPush(t.Context(), "l", "a").Err())
	got, err := second.reply()
	require.NoError(t, err)
	assert.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\na\r\n", got)
	got, err = second.reply()
	require.NoError(t, err)
	assert.Equal(t, "+PONG\r\n", got, "what was pipelined behind")
}

func TestBlockingTimeoutsAndUnblock(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	began := time.Now()
	assert.Equal(t, "*-1\r\n", c.ask(t, "BLPOP", "l", "0.05"))
	assert.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
	c.ask(t, "HELLO", "3")
	assert.Equal(t, "_\r\n", c.ask(t, "BLMOVE", "l", "m", "LEFT", "LEFT", "0.01"))
	id := e.client(t, 2).Do(t.Context(), "CLIENT", "ID") // any other client
	require.NoError(t, id.Err())
	other := dial(t, e.addr)
	own := other.ask(t, "CLIENT", "ID")
	for _, how := range []string{"TIMEOUT", "ERROR"} {
		other.send(t, "blpop l 0\r\n")
		e.awaitBlocked(t, 1)
		require.Eventually(t, func() bool {
			return c.ask(t, "CLIENT", "UNBLOCK", own[1:len(own)-2], how) == ":1\r\n"
		}, await.Patience, time.Millisecond)
		got, err := other.reply()
		require.NoError(t, err)
		if how == "ERROR" {
			assert.Equal(t, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n", got)
		} else {
			assert.Equal(t, "*-1\r\n", got)
		}
	}
}

// TestStockClient uses go-redis as an application does.
func TestStockClient(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			e := start(t, opened(t), nil)
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			c := redis.NewClient(&redis.Options{Addr: e.addr, Protocol: protocol, MaxRetries: -1, DB: 2}) // with all that it says at start
			defer func() { _ = c.Close() }()
			require.NoError(t, c.Set(ctx, "a", "1", time.Hour).Err())
			require.Equal(t, "1", c.Get(ctx, "a").Val())
			require.InDelta(t, time.Hour, c.TTL(ctx, "a").Val(), float64(time.Minute))
			require.ErrorIs(t, c.Get(ctx, "none").Err(), redis.Nil)
			require.Equal(t, int64(3), c.IncrBy(ctx, "a", 2).Val())
			require.NoError(t, c.HSet(ctx, "h", "f", "1", "g", "2").Err())
			require.Equal(t, map[string]string{"f": "1", "g": "2"}, c.HGetAll(ctx, "h").Val())
			require.NoError(t, c.ZAdd(ctx, "z", redis.Z{Score: 1.5, Member: "m"}).Err())
			require.Equal(t, []redis.Z{{Score: 1.5, Member: "m"}}, c.ZRangeWithScores(ctx, "z", 0, -1).Val())
			require.ErrorIs(t, c.LPop(ctx, "none").Err(), redis.Nil)
			require.ErrorIs(t, c.LPopCount(ctx, "none", 2).Err(), redis.Nil)

			cmds, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "n")
				p.Get(ctx, "n")
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, "1", cmds[1].(*redis.StringCmd).Val())

			require.NoError(t, c.Watch(ctx, func(tx *redis.Tx) error {
				require.NoError(t, c.Set(ctx, "other", 1, 0).Err())
				_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
					p.Set(ctx, "n", "5", 0)
					return nil
				})
				return err
			}, "n"))
			err = c.Watch(ctx, func(tx *redis.Tx) error {
				require.NoError(t, c.Incr(ctx, "n").Err())
				_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
					p.Set(ctx, "n", "7", 0)
					return nil
				})
				return err
			}, "n")
			require.ErrorIs(t, err, redis.TxFailedErr)
			require.Equal(t, "6", c.Get(ctx, "n").Val())

			sub := c.Subscribe(ctx, "news")
			defer func() { _ = sub.Close() }()
			_, err = sub.Receive(ctx)
			require.NoError(t, err)
			require.Equal(t, int64(1), c.Publish(ctx, "news", "hello").Val())
			message, err := sub.ReceiveMessage(ctx)
			require.NoError(t, err)
			require.Equal(t, "hello", message.Payload)
			require.NoError(t, sub.Ping(ctx, "x"))
			require.NoError(t, sub.Unsubscribe(ctx, "news"))

			keys, _, err := c.Scan(ctx, 0, "*", 1000).Result()
			require.NoError(t, err)
			require.ElementsMatch(t, []string{"a", "h", "z", "n", "other"}, keys)
			require.NoError(t, c.LPush(ctx, "q", "x").Err())
			require.Equal(t, []string{"q", "x"}, c.BLPop(ctx, time.Second, "q").Val())
			script := redis.NewScript("redis.call('SET', KEYS[1], ARGV[1]); return redis.call('GET', KEYS[1])")
			require.Equal(t, "v", script.Run(ctx, c, []string{"s"}, "v").Val())
			require.NoError(t, c.XAdd(ctx, &redis.XAddArgs{Stream: "x", Values: []string{"f", "v"}}).Err())
			streams, err := c.XRead(ctx, &redis.XReadArgs{Streams: []string{"x", "0"}, Block: time.Second}).Result()
			require.NoError(t, err)
			require.Len(t, streams[0].Messages, 1)
		})
	}
}
