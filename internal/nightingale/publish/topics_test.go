package publish

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
	"github.com/aviaryhq/aviary/test/fakebroker/publishtest"
)

// TestATopicOfTheConfigurationThatIsTerminatedEndsTheService: as it does at the start.
func TestATopicOfTheConfigurationThatIsTerminatedEndsTheService(t *testing.T) {
	for _, ack := range []string{AckBroker, AckQueued} {
		cause := messaging.ErrTopicTerminated
		c := publishtest.NewCluster()
		c.Broken = map[string]error{pinnedName: fmt.Errorf("%w: told by the broker", cause)}
		cfg := defaultPublishing()
		cfg.Topic, cfg.Ack = pinnedName, ack
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(c))
		ended := make(chan error, 1)
		go func() { ended <- all.Run(t.Context()) }()
		awaitOpen(t, all)
		topic := all.acquire("", []byte(pinnedName), true)
		_, err := topic.publish(t.Context(), three())
		all.release(topic)
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
		err = <-ended
		require.ErrorIs(t, err, cause)
		assert.Contains(t, err.Error(), pinnedName)
		assert.ErrorIs(t, all.Check(t.Context()), cause)
		require.NoError(t, all.Close(t.Context()))
	}
}

// TestATopicOfTheConfigurationThatCannotBeOpenedEndsTheService: nothing would ever
// be stored there.
func TestATopicOfTheConfigurationThatCannotBeOpenedEndsTheService(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"topic": func(cfg *Config) { cfg.Topic = pinnedName },
		"overflow": func(cfg *Config) {
			cfg.Topic, cfg.Topics.OverflowTopic = "persistent://public/default/{name}", pinnedName
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := publishtest.NewCluster()
			c.Refuse = map[string]error{pinnedName: messaging.ErrTopicTerminated}
			cfg := defaultPublishing()
			change(&cfg)
			all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(c))
			require.ErrorIs(t, all.Run(t.Context()), messaging.ErrTopicTerminated)
			require.Error(t, all.Check(t.Context()))
			require.NoError(t, all.Close(t.Context()))
		})
	}
}

// TestNoRequestWaitsForATopicOfTheConfiguration: the service is not ready before it is open.
func TestNoRequestWaitsForATopicOfTheConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Opening = map[string]<-chan struct{}{pinnedName: make(chan struct{})}
		cfg := defaultPublishing()
		cfg.Topic = pinnedName
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(c))
		began := time.Now()
		topic := all.acquire("", []byte(pinnedName), true)
		assert.ErrorContains(t, topic.await(t.Context()), "not open yet")
		assert.Zero(t, time.Since(began))
		all.release(topic)
		assert.NoError(t, all.Close(t.Context()))
	})
}

func TestIdleTopicsAreClosedAndMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		cfg := defaultPublishing()
		cfg.Topic = "persistent://public/default/{name}"
		cfg.Topics.MaxTopics, cfg.Topics.IdleAfter = 1, time.Minute
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(c))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.Run(ctx) }()
		first := all.acquire("", []byte("one"), true)
		require.NotNil(t, first)
		require.NoError(t, first.await(ctx))
		time.AfterFunc(10*time.Minute, func() { all.release(first) })
		assert.Nil(t, all.acquire("", []byte("two"), true))
		after := time.NewTimer(10*time.Minute + 59*time.Second)
		<-after.C
		synctest.Wait()
		assert.Nil(t, all.acquire("", []byte("two"), true), "not idle for long enough")
		after.Reset(time.Minute)
		<-after.C
		synctest.Wait()
		second := all.acquire("", []byte("two"), true)
		require.NotNil(t, second)
		require.NoError(t, second.await(ctx))
		c.Mu.Lock()
		assert.Equal(t, map[string]int{"one": 1}, c.Closes)
		c.Mu.Unlock()
		all.release(second)
		cancel()
		assert.NoError(t, <-ended)
		assert.Nil(t, all.acquire("", []byte("two2"), true), "no new topics while stopping")
		assert.NoError(t, all.Close(context.Background()))
		assert.Equal(t, map[string]int{"one": 1, "two": 1}, c.Closes)
	})
}

// TestATenantCannotTakeTheTopicsOfOthers: a tenant with less than its share gets a topic, and the one
// with the most loses the topic that it has not used for longest.
func TestATenantCannotTakeTheTopicsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultPublishing()
		cfg.Topic, cfg.Topics.MaxTopics = "persistent://public/default/{name}", 10
		c := publishtest.NewCluster()
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(c))
		use := func(tenant string, n int) bool {
			e := all.acquire(tenant, fmt.Appendf(nil, "%s %d", tenant, n), true)
			if e == nil {
				return false
			}
			require.NoError(t, e.await(t.Context()))
			all.release(e)
			<-time.After(time.Millisecond) // the bubble's clock
			return true
		}
		for n := range 10 {
			assert.True(t, use("large", n))
		}
		assert.False(t, use("large", 10))
		for n := range 5 {
			assert.True(t, use("small", n), n)
			synctest.Wait() // until the other topic is closed
		}
		assert.False(t, use("small", 5), "it has its share")
		assert.False(t, use("large", 0), "it is closed")
		assert.True(t, use("large", 9))
		c.Mu.Lock()
		assert.Equal(t, map[string]int{"large 0": 1, "large 1": 1, "large 2": 1, "large 3": 1, "large 4": 1}, c.Closes)
		c.Mu.Unlock()

		busy := all.acquire("large", []byte("large 9"), true)
		assert.True(t, use("third", 0), "an unused one of the others")
		all.release(busy)
		assert.NoError(t, all.Close(context.Background()))
	})
}

// TestTopicsThatCloseKeepTheirPlace: max_topics is exceeded only by the few that are closing.
func TestTopicsThatCloseKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultPublishing()
		cfg.Topic, cfg.Topics.MaxTopics = "persistent://public/default/{name}", 10
		flush := make(chan struct{})
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, func(context.Context, string) (Publisher, error) {
			return &slowCloser{closing: flush}, nil
		})
		use := func(tenant string, n int) {
			if e := all.acquire(tenant, fmt.Appendf(nil, "%s %d", tenant, n), true); e != nil {
				all.release(e)
			}
		}
		for n := range 100 {
			for m := range 10 {
				use("large", m)
			}
			use(fmt.Sprint("small ", n), 0)
			synctest.Wait()
			all.mu.Lock()
			assert.LessOrEqual(t, len(all.known)+len(all.closing), 10+2, n)
			all.mu.Unlock()
		}
		close(flush)
		assert.NoError(t, all.Close(context.Background()))
	})
}

// TestATopicIsOpenedBehindAllThatCloses: however often it is asked for meanwhile.
func TestATopicIsOpenedBehindAllThatCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultPublishing()
		cfg.Topic, cfg.Topics.IdleAfter = "persistent://public/default/{name}", time.Minute
		flush := make(chan struct{})
		opens := 0
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, func(context.Context, string) (Publisher, error) {
			opens++
			return &slowCloser{closing: flush}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.Run(ctx) }()
		for range 4 { // the first is open and takes long to close
			all.release(all.acquire("", []byte("one"), true))
			<-time.After(5 * time.Minute) // the bubble's clock
			synctest.Wait()
		}
		assert.Equal(t, 1, opens, "while the first one still flushes")
		close(flush)
		synctest.Wait()
		assert.Equal(t, 2, opens)
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, all.Close(t.Context()))
	})
}

// slowCloser is a publisher whose Close waits.
type slowCloser struct {
	Publisher
	closing chan struct{}
}

func (p *slowCloser) Close(ctx context.Context) error {
	select {
	case <-p.closing:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stuckCloser is a publisher that, like that of the library, closes once: the first call flushes until
// its context ends, and further ones wait for it.
type stuckCloser struct {
	scripted
	first  atomic.Bool
	closed chan struct{}
}

func (p *stuckCloser) Close(ctx context.Context) error {
	if p.first.CompareAndSwap(false, true) {
		<-ctx.Done()
		close(p.closed)
	}
	<-p.closed
	return nil
}

// TestAnIdleTopicThatCannotCloseDoesNotHoldTheStop: Pulsar became unreachable before the topic was
// idle.
func TestAnIdleTopicThatCannotCloseDoesNotHoldTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultPublishing()
		cfg.Topic, cfg.Topics.IdleAfter = "persistent://public/default/{name}", time.Minute
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, func(context.Context, string) (Publisher, error) {
			return &stuckCloser{closed: make(chan struct{})}, nil
		})
		all.release(all.acquire("", []byte("one"), true))
		synctest.Wait()
		all.Sweep(time.Now().Add(time.Hour))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			assert.NoError(t, all.Close(ctx))
		}()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			require.Fail(t, "the stop goes on after its context has ended")
		}
	})
}

// TestReadyOnlyOncePulsarHasAnswered: where senders name all topics there is none to open
// before the first series.
func TestReadyOnlyOncePulsarHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultPublishing()
		cfg.Topic = "persistent://public/default/{name}"
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(publishtest.NewCluster()))
		answers := make(chan struct{})
		all.ReachFirst(func(ctx context.Context) error {
			select {
			case <-answers:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		require.ErrorIs(t, all.Check(t.Context()), errNotReached)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.Run(ctx) }()
		synctest.Wait()
		require.ErrorIs(t, all.Check(t.Context()), errNotReached)
		close(answers)
		synctest.Wait()
		require.NoError(t, all.Check(t.Context()))
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, all.Close(t.Context()))
	})
}

// TestAPinnedTopicTellsWhetherPulsarIsThere: no other question is asked.
func TestAPinnedTopicTellsWhetherPulsarIsThere(t *testing.T) {
	for _, change := range []func(*Config){
		func(cfg *Config) { cfg.Topic = pinnedName },
		func(cfg *Config) {
			cfg.Topic, cfg.Topics.OverflowTopic = "persistent://public/default/{name}", pinnedName
		},
	} {
		cfg := defaultPublishing()
		change(&cfg)
		all := New(zap.NewNop(), cfg, NewMetrics(prometheus.NewRegistry()), nil, clusterOpener(publishtest.NewCluster()))
		all.ReachFirst(func(context.Context) error { panic("asked") })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.Run(ctx) }()
		awaitOpen(t, all)
		require.NoError(t, all.Check(t.Context()))
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, all.Close(t.Context()))
	}
}

const pinnedName = "persistent://public/default/rest"

func defaultPublishing() Config {
	return Config{
		Topic: "persistent://public/default/metrics", Topics: DefaultTopics(), Ack: AckBroker, RequestTimeout: 10 * time.Second,
		PendingBytes: 64 << 20, PendingRecords: 100_000,
	}
}

// clusterOpener opens the cluster's topics.
func clusterOpener(c *publishtest.Cluster) func(context.Context, string) (Publisher, error) {
	return func(ctx context.Context, topic string) (Publisher, error) { return c.Open(ctx, topic) }
}

// awaitOpen waits until all topics are open.
func awaitOpen(t *testing.T, all *Topics) {
	t.Helper()
	all.mu.Lock()
	known := maps.Clone(all.known)
	all.mu.Unlock()
	for _, e := range known {
		<-e.opened
	}
}
