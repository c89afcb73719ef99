//go:build !race

package messaging_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// The race detector multiplies memory, so these tests run without it.

const (
	bigBacklog     = 200
	biggestBacklog = 2000 // with soakVariable
)

// A backlog of 200 messages of 1 MiB is consumed with the process under 200 MiB resident, which it
// would not be if it held all of them. So is one of 2,000.
func TestBacklogOfLargeMessagesFitsTheBudget(t *testing.T) {
	t.Parallel()
	backlog, limit := bigBacklog, await.Patience
	if soak() {
		backlog, limit = biggestBacklog, 10*await.Patience
	}
	srv := stack.Pulsar(t)
	topic := srv.Topic(t, srv.Namespace(t), 0)
	client := dial(t, srv.URL())
	p := open(t, client, topic, nil)
	var failed atomic.Int32
	for range backlog {
		payload := make([]byte, 1<<20)
		_, _ = rand.Read(payload) // incompressible
		p.PublishAsync(context.Background(), &messaging.Record{Payload: payload}, func(_ messaging.MessageID, err error) {
			if err != nil {
				failed.Add(1)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	require.NoError(t, p.Flush(ctx))
	require.NoError(t, p.Close(testContext(t)))
	require.Zero(t, failed.Load())

	for _, kind := range []messaging.SubscriptionType{messaging.Shared, messaging.Failover} {
		t.Run(string(kind), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			child := exec.CommandContext(ctx, os.Args[0], srv.URL(), topic, string(kind), strconv.Itoa(backlog))
			child.Env = append(os.Environ(), consumesBacklog+"=1")
			out, err := child.CombinedOutput()
			require.NoError(t, err, "%s", out)
			_, figures, found := strings.Cut(string(out), "figures:")
			require.True(t, found, "%s", out)
			var handled, kib, millis int
			_, err = fmt.Sscan(figures, &handled, &kib, &millis)
			require.NoError(t, err)
			t.Logf("%d messages in %d ms, peak %d MiB resident", handled, millis, kib>>10)
			require.Equal(t, backlog, handled)
			require.Less(t, kib, 200<<10)
		})
	}
}

// The queue becomes long for small messages; when large ones follow, it becomes
// short again before they fill the memory.
func TestLargeMessagesAfterSmallOnes(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := srv.Topic(t, srv.Namespace(t), 0)
	reg := prometheus.NewRegistry()
	client := dial(t, srv.URL(), messaging.WithRegisterer(reg))
	publish(t, client, topic, 2000, false)

	cfg := consumerConfig(topic, messaging.Exclusive)
	cfg.PrefetchBytes = 16 << 20
	var small, large atomic.Int32
	var blocked sync.WaitGroup
	blocked.Add(1)
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		if len(d.Payload) < 1000 {
			small.Add(1)
			return nil
		}
		blocked.Wait()
		large.Add(1)
		return nil
	})
	resubscribed := func(reason string) int {
		return counted(t, reg, "aviary_messaging_resubscribes_total", "sub", reason)
	}
	eventually(t, "small ones are handled", func() bool { return small.Load() == 2000 })
	require.Equal(t, 1, resubscribed("longer_queue"))

	p := open(t, client, topic, nil)
	for range 60 {
		payload := make([]byte, 1<<20)
		_, _ = rand.Read(payload)
		require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: payload}))
	}
	blocked.Done() // a session ends when its handlers have
	eventually(t, "large ones are handled", func() bool { return large.Load() >= 60 })
	require.Equal(t, 1, resubscribed("shorter_queue"))
	r.stop(t)
	require.Zero(t, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog)
}
