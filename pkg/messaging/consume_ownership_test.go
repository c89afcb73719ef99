package messaging_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/stack"
)

// owner is a service that keeps state per partition while it has the partition.
type owner struct {
	mu     sync.Mutex
	owned  map[int]bool
	gained int
	lost   []error
	got    []string
	alien  []string // messages of partitions that it does not have
}

func (o *owner) gain(ctx context.Context, _ string, partition int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owned == nil {
		o.owned = make(map[int]bool)
	}
	o.owned[partition] = true
	o.gained++
	context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.owned, partition)
		o.lost = append(o.lost, context.Cause(ctx))
	})
}

func (o *owner) handle(ctx context.Context, d *messaging.Delivery) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() == nil && !o.owned[d.Partition] {
		o.alien = append(o.alien, string(d.Payload))
	}
	o.got = append(o.got, string(d.Payload))
	return nil
}

func (o *owner) partitions() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []int
	for p := range o.owned {
		all = append(all, p)
	}
	slices.Sort(all)
	return all
}

func (o *owner) handled() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.got)
}

func startOwner(t *testing.T, client *messaging.Client, cfg messaging.ConsumerConfig, o *owner) *running {
	t.Helper()
	c, err := client.Consumer(cfg, messaging.OnOwned(o.gain))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- c.Run(ctx, o.handle) }()
	t.Cleanup(func() { cancel() })
	return r
}

func TestFailoverConsumersHandPartitionsOver(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := srv.Topic(t, srv.Namespace(t), 4)
	cfg := consumerConfig(topic, messaging.Failover)
	cfg.AckEvery = 5 * time.Millisecond
	var one, two owner
	clientOne, clientTwo := dial(t, srv.URL()), dial(t, srv.URL())
	r1 := startOwner(t, clientOne, cfg, &one)
	eventually(t, "the first has all partitions", func() bool { return len(one.partitions()) == 4 })
	r2 := startOwner(t, clientTwo, cfg, &two)
	eventually(t, "each partition has one owner", func() bool {
		both := append(one.partitions(), two.partitions()...)
		slices.Sort(both)
		return len(two.partitions()) > 0 && slices.Equal(both, []int{0, 1, 2, 3})
	})
	publish(t, clientOne, topic, 200, true)
	eventually(t, "all are handled", func() bool { return len(one.handled())+len(two.handled()) >= 200 })

	r1.stop(t)
	require.Empty(t, one.partitions(), "nothing is owned when Run has returned")
	for _, cause := range one.lost {
		require.ErrorIs(t, cause, messaging.ErrOwnershipLost)
	}
	eventually(t, "the second has all partitions", func() bool { return len(two.partitions()) == 4 })
	publish(t, clientTwo, topic, 200, true)
	before := len(one.handled())
	eventually(t, "all are handled", func() bool { return len(one.handled())+len(two.handled()) >= 400 })
	require.Len(t, one.handled(), before)
	r2.stop(t)
	require.Empty(t, one.alien)
	require.Empty(t, two.alien)
	require.Zero(t, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog)
}

func TestNoMessageIsHandledBeforeOnOwnedReturns(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	for i := range 5 {
		s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte(strconv.Itoa(i))})
	}
	loading, loaded := make(chan struct{}), make(chan struct{})
	var got payloads
	c, err := client.Consumer(quickConfig(messaging.Exclusive, messaging.OrderKey), messaging.OnOwned(
		func(context.Context, string, int) {
			close(loading)
			<-loaded
			require.Empty(t, got.list())
		}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
			got.add(d)
			return nil
		})
	}()
	<-loading
	require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandFlow, 1))
	close(loaded)
	eventually(t, "all are handled", func() bool { return len(got.list()) == 5 })
	cancel()
	require.NoError(t, <-ended)
}

// Run waits for a service that gives its partition up, until StopTimeout.
func TestRunWaitsForOnOwned(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	loading, ended := make(chan struct{}), make(chan struct{})
	cfg := quickConfig(messaging.Exclusive, messaging.OrderKey)
	cfg.StopTimeout = 200 * time.Millisecond
	c, err := dial(t, s.URL()).Consumer(cfg, messaging.OnOwned(func(ctx context.Context, _ string, _ int) {
		close(loading)
		<-ctx.Done()
		<-ended // too late
	}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(testContext(t))
	var began time.Time
	go func() {
		<-loading
		began = time.Now()
		cancel()
	}()
	require.NoError(t, c.Run(ctx, func(context.Context, *messaging.Delivery) error { return nil }))
	require.GreaterOrEqual(t, time.Since(began), cfg.StopTimeout)
	close(ended)
}

func TestOnOwnedNeedsOneConsumerPerPartition(t *testing.T) {
	t.Parallel()
	client := dial(t, "pulsar://127.0.0.1:1")
	_, err := client.Consumer(consumerConfig(topic, messaging.Shared), messaging.OnOwned(func(context.Context, string, int) {}))
	require.ErrorContains(t, err, "type")
}

// The index that OnOwned gets is the one that deliveries have, also of one partition by its name.
func TestOwnedPartitionIsTheDeliverys(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 2)
			one := topic + "-partition-1"
			s.Publish(one, fakebroker.Message{Payload: []byte("x")})
			cfg := quickConfig(kind, messaging.OrderKey)
			cfg.Topics = []string{one}
			owned := make(chan int, 1)
			c, err := dial(t, s.URL()).Consumer(cfg, messaging.OnOwned(func(_ context.Context, _ string, partition int) {
				owned <- partition
			}))
			require.NoError(t, err)
			n, err := c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
				assert.Equal(t, 1, d.Partition)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, 1, <-owned)
		})
	}
}

// A service writes its state when it gives a partition up. Another loads it when it gains the
// partition.
func TestStoppingGivesUpBeforeAnotherGains(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	var state atomic.Int32
	run := func(gained func(context.Context)) (cancel context.CancelFunc, ended chan error) {
		c, err := dial(t, s.URL()).Consumer(quickConfig(messaging.Failover, messaging.OrderKey),
			messaging.OnOwned(func(ctx context.Context, _ string, _ int) { gained(ctx) }))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(testContext(t))
		ended = make(chan error, 1)
		go func() { ended <- c.Run(ctx, func(context.Context, *messaging.Delivery) error { return nil }) }()
		return cancel, ended
	}
	has := make(chan struct{})
	cancelOne, oneEnded := run(func(ctx context.Context) {
		close(has)
		<-ctx.Done()
		state.Store(1)
	})
	<-has
	loaded := make(chan int32, 1)
	cancelTwo, twoEnded := run(func(context.Context) { loaded <- state.Load() })
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 2))
	cancelOne()
	require.EqualValues(t, 1, <-loaded)
	require.NoError(t, <-oneEnded)
	cancelTwo()
	require.NoError(t, <-twoEnded)
}
