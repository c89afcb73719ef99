package messaging_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// A topic gains a partition to which subscribing fails at first. The others go on, and it is
// subscribed later.
func TestNewPartitionThatCannotBeSubscribed(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*messaging.ConsumerConfig){
		"topic": func(*messaging.ConsumerConfig) {},
		"pattern": func(c *messaging.ConsumerConfig) {
			c.Topics, c.Pattern = nil, topic+".*"
			c.Retry.DeadLetterTopic = "persistent://public/default/dead"
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 2)
			client := dial(t, s.URL())
			cfg := quickConfig(messaging.Exclusive, messaging.OrderKey)
			cfg.DiscoverEvery = 20 * time.Millisecond
			set(&cfg)
			var got payloads
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				got.add(d)
				return nil
			})
			publish := func(partitions, from int) {
				for i := range partitions {
					s.Publish(topic+"-partition-"+strconv.Itoa(i), fakebroker.Message{Payload: []byte(strconv.Itoa(from + i))})
				}
			}
			publish(2, 0)
			eventually(t, "the first are handled", func() bool { return len(got.list()) == 2 })
			lookups := s.Received(fakebroker.CommandPartitionedMetadata)
			require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandPartitionedMetadata, lookups+20)) // their number is known

			refused := s.FailSubscribe(topic+"-partition-2", fakebroker.ServiceNotReady, 2)
			s.CreateTopic(topic, 3)
			require.NoError(t, refused.Wait(testContext(t), 2))
			publish(3, 2)
			eventually(t, "all are handled", func() bool { return len(got.list()) == 5 })
			r.stop(t)
		})
	}
}

// A connection breaks while the partitions of a topic are subscribing. What was owned by then is
// lost before it is gained again, and nothing hangs.
func TestConnectionBreaksWhileSubscribing(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	client := dial(t, s.URL())
	var mu sync.Mutex
	latest := make(map[int]context.Context)
	gained := 0
	c, err := client.Consumer(quickConfig(messaging.Failover, messaging.OrderKey), messaging.OnOwned(
		func(ctx context.Context, _ string, partition int) {
			mu.Lock()
			defer mu.Unlock()
			if before := latest[partition]; before != nil && before.Err() == nil {
				t.Errorf("partition %d is gained twice", partition)
			}
			latest[partition] = ctx
			gained++
		}))
	require.NoError(t, err)
	gains := func() int {
		mu.Lock()
		defer mu.Unlock()
		return gained
	}
	unanswered := s.Ignore(fakebroker.OpSubscribe, topic+"-partition-1", 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	var got payloads
	go func() {
		ended <- c.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
			got.add(d)
			return nil
		})
	}()
	require.NoError(t, unanswered.Wait(testContext(t), 1))
	eventually(t, "one is owned", func() bool { return gains() == 1 })
	require.Positive(t, s.CutConnections())
	for i := range 2 {
		s.Publish(topic+"-partition-"+strconv.Itoa(i), fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
	}
	eventually(t, "both are handled", func() bool { return len(got.list()) == 2 })
	cancel()
	require.NoError(t, <-ended)
}

// Run ends while one partition has not answered. What the others have delivered goes to the next
// consumer, and what was owned is given up.
func TestNothingIsPinnedAfterRunThatWasSubscribing(t *testing.T) {
	t.Parallel()
	for _, kind := range allTypes {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 2)
			first, second := topic+"-partition-0", topic+"-partition-1"
			s.Publish(first, fakebroker.Message{Key: "k", Payload: []byte("0")})
			client, err := messaging.Dial(testContext(t), messaging.Config{URL: s.URL(), OperationTimeout: time.Hour})
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close(testContext(t))) }()
			unanswered := s.Ignore(fakebroker.OpSubscribe, second, 1)
			var o owner
			var options []messaging.ConsumerOption
			if kind == messaging.Failover {
				options = append(options, messaging.OnOwned(o.gain))
			}
			c, err := client.Consumer(quickConfig(kind, ""), options...)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				ended <- c.Run(ctx, func(context.Context, *messaging.Delivery) error { return nil })
			}()
			require.NoError(t, unanswered.Wait(testContext(t), 1))
			require.NoError(t, s.Until(testContext(t), func() bool {
				all := s.Consumers(first, "sub")
				return len(all) == 1 && all[0].Unacked == 1
			}))
			cancel()
			require.NoError(t, <-ended)
			require.Empty(t, s.Consumers(first, "sub"))
			eventually(t, "what was owned is lost", func() bool { return len(o.partitions()) == 0 })
		})
	}
}

// Brokers sort the consumers of a Failover partition by name, and divide the partitions by that.
func TestConsumerHasOneNameOnAllPartitions(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 5)
	names := make(map[string]int)
	for i := range 3 {
		r := start(t, dial(t, s.URL()), quickConfig(messaging.Failover, messaging.OrderKey),
			func(context.Context, *messaging.Delivery) error { return nil })
		defer r.stop(t)
		require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 5*(i+1)))
	}
	for _, c := range s.Consumers(topic, "sub") {
		names[c.Name]++
	}
	require.Len(t, names, 3)
	for name, n := range names {
		require.Equal(t, 5, n, name)
	}
}

// What is received ahead is divided among partitions. A topic that gains many gets no multiple of
// it.
func TestNewPartitionsShareThePrefetch(t *testing.T) {
	t.Parallel()
	for _, kind := range allTypes {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			const ahead, partitions = 100, 20
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 1)
			cfg := quickConfig(kind, "")
			cfg.DiscoverEvery = 20 * time.Millisecond
			cfg.PrefetchMessages = ahead
			r := start(t, dial(t, s.URL()), cfg, func(context.Context, *messaging.Delivery) error { return nil })
			permits := func(partitions int) (all int) {
				require.NoError(t, s.Until(testContext(t), func() bool {
					all = 0
					for _, c := range s.Consumers(topic, "sub") {
						if c.Permits == 0 {
							return false
						}
						all += c.Permits
					}
					return len(s.Consumers(topic, "sub")) == partitions
				}))
				return all
			}
			require.Equal(t, ahead, permits(1))
			s.CreateTopic(topic, partitions)
			require.LessOrEqual(t, permits(partitions), 2*ahead)
			r.stop(t)
		})
	}
}
