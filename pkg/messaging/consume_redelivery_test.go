package messaging_test

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// What a broker delivers again within one session, and what a session's end takes along.

// payloads collects what a handler was called for, in order.
type payloads struct {
	mu  sync.Mutex
	all []string
}

func (p *payloads) add(d *messaging.Delivery) {
	p.mu.Lock()
	p.all = append(p.all, string(d.Payload))
	p.mu.Unlock()
}

func (p *payloads) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.all...)
}

// quickConfig is a consumer that tests on the in-process server can follow.
func quickConfig(kind messaging.SubscriptionType, order messaging.Order) messaging.ConsumerConfig {
	cfg := consumerConfig(topic, kind)
	cfg.Order = order
	cfg.MaxMessageBytes = 1 << 10
	cfg.AckEvery = 5 * time.Millisecond
	return cfg
}

func publishNumbers(s *fakebroker.Server, key string, n int) {
	for i := range n {
		s.Publish(topic, fakebroker.Message{Key: key, Payload: []byte(strconv.Itoa(i))})
	}
}

func redelivered(t *testing.T, reg *prometheus.Registry) int {
	t.Helper()
	return counted(t, reg, "aviary_messaging_redelivered_messages_total", "sub")
}

func TestAcknowledgementsLostWithAConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  messaging.SubscriptionType
		order messaging.Order
	}{
		{messaging.Exclusive, messaging.OrderKey},
		{messaging.Exclusive, messaging.OrderPartition},
		{messaging.Exclusive, messaging.OrderTotal},
		{messaging.Exclusive, messaging.OrderNone},
		{messaging.KeyShared, messaging.OrderKey},
		{messaging.Shared, messaging.OrderNone},
	} {
		t.Run(string(c.kind)+" "+string(c.order), func(t *testing.T) {
			s := fakebroker.Start(t)
			reg := prometheus.NewRegistry()
			client := dial(t, s.URL(), messaging.WithRegisterer(reg))
			messaging.SetAckLanding(client, await.Patience)
			publishNumbers(s, "k", 3)
			lost := s.Ignore(fakebroker.OpAck, topic, fakebroker.Always)
			release, entered := make(chan struct{}), make(chan struct{}, 10)
			var got payloads
			cfg := quickConfig(c.kind, c.order)
			cfg.Concurrency = 1
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				if string(d.Payload) == "2" {
					entered <- struct{}{}
					<-release
				}
				got.add(d)
				return nil
			})
			<-entered
			require.NoError(t, lost.Wait(testContext(t), 1))
			s.CutConnections()
			lost.Remove()
			eventually(t, "the broker delivers all of it again", func() bool { return redelivered(t, reg) == 3 })
			close(release)
			eventually(t, "all is acknowledged", func() bool { return s.Acked(topic, "sub") == 3 })
			r.stop(t)
			if c.order == messaging.OrderNone {
				require.ElementsMatch(t, []string{"0", "1", "2"}, got.list(), "each is handled once")
			} else {
				require.Equal(t, []string{"0", "1", "2"}, got.list(), "each is handled once, and the newest last")
			}
		})
	}
}

func TestAcknowledgementsLostWithAConnectionWhileVerdictsAreOpen(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	messaging.SetAckLanding(client, await.Patience)
	publishNumbers(s, "k", 6)
	lost := s.Ignore(fakebroker.OpAck, topic, fakebroker.Always)
	var h handed
	r := startAsync(t, client, quickConfig(messaging.Exclusive, messaging.OrderPartition), h.over)
	eventually(t, "all are handed over", func() bool { return h.count() == 6 })
	got, pending := h.take()
	for _, p := range pending[:3] {
		p.Complete(nil)
	}
	require.NoError(t, lost.Wait(testContext(t), 1))
	s.CutConnections()
	lost.Remove()
	eventually(t, "the broker delivers all of it again", func() bool { return redelivered(t, reg) == 6 })
	for _, p := range pending[3:] {
		p.Complete(nil)
	}
	eventually(t, "all is acknowledged", func() bool { return s.Acked(topic, "sub") == 6 })
	r.stop(t)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, got)
	require.Zero(t, h.count(), "nothing is handed over again")
}

func TestReconnectInsideABatchLeavesNothingUnacknowledged(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.Shared} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			reg := prometheus.NewRegistry()
			client := dial(t, s.URL(), messaging.WithRegisterer(reg))
			s.CreateTopic(topic, 0)
			var ms []fakebroker.Message
			for i := range 20 {
				ms = append(ms, fakebroker.Message{Key: "k" + strconv.Itoa(i), Payload: []byte(strconv.Itoa(i))})
			}
			s.PublishBatch(topic, fakebroker.Compression(0), ms...)
			release := make(chan struct{})
			freed := sync.OnceFunc(func() { close(release) })
			t.Cleanup(freed)
			var calls atomic.Int32
			var got payloads
			cfg := quickConfig(kind, "")
			cfg.PrefetchMessages = 4
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				calls.Add(1)
				<-release
				got.add(d)
				return nil
			})
			eventually(t, "the bound is reached", func() bool { return calls.Load() >= 4 })
			flows := s.Received(fakebroker.CommandFlow)
			s.CutConnections()
			require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandFlow, flows+1))
			freed()
			eventually(t, "the entry is acknowledged", func() bool { return s.Acked(topic, "sub") == 20 })
			r.stop(t)
			if kind == messaging.Failover { // another consumer may have had the partition
				require.Subset(t, got.list(), numbered(20))
				return
			}
			require.ElementsMatch(t, numbered(20), got.list(), "each is handled once")
		})
	}
}

func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return all
}

func TestHeldMessagesDoNotFillThePrefetch(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			client := dial(t, s.URL())
			for i := range 20 {
				key := "bad" + strconv.Itoa(i%5)
				s.Publish(topic, fakebroker.Message{Key: key, Payload: []byte("bad")}, fakebroker.Message{Key: key, Payload: []byte("behind")})
			}
			s.Publish(topic, fakebroker.Message{Key: "good", Payload: []byte("good")})
			good := make(chan struct{})
			cfg := quickConfig(kind, messaging.OrderKey)
			cfg.PrefetchMessages = 10
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				if string(d.Payload) == "bad" {
					return messaging.RetryAfter(errors.New("unavailable"), time.Hour)
				}
				close(good)
				return nil
			})
			select {
			case <-good:
			case <-testContext(t).Done():
				t.Fatal("a message of another key is not handled")
			}
			r.stop(t)
		})
	}
}

func TestVerdictOfAnAttemptDoesNotCountForTheNext(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte("x")})
	cfg := quickConfig(messaging.Exclusive, messaging.OrderKey)
	cfg.StopTimeout = time.Second
	var h handed
	r := startAsync(t, client, cfg, h.over)
	eventually(t, "the first attempt", func() bool { return h.count() == 1 })
	_, first := h.take()
	first[0].Complete(errors.New("timeout"))
	eventually(t, "the second attempt", func() bool { return h.count() == 1 })
	_, second := h.take()
	first[0].Complete(nil)
	second[0].Complete(errors.New("timeout"))
	eventually(t, "the third attempt: the late verdict of the first had no effect", func() bool { return h.count() == 1 })
	_, third := h.take()
	require.Zero(t, s.Acked(topic, "sub"))
	third[0].Complete(nil)
	eventually(t, "acknowledged", func() bool { return s.Acked(topic, "sub") == 1 })
	r.stop(t)
}

// A broker may lose acknowledgements that it has had for long. The next session begins where the
// broker then stands.
func TestBrokerThatGoesBackEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  messaging.SubscriptionType
		order messaging.Order
	}{
		{messaging.Exclusive, messaging.OrderKey},
		{messaging.Exclusive, messaging.OrderPartition},
		{messaging.Exclusive, messaging.OrderTotal},
		{messaging.Exclusive, messaging.OrderNone},
	} {
		t.Run(string(c.kind)+" "+string(c.order), func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			reg := prometheus.NewRegistry()
			client := dial(t, s.URL(), messaging.WithRegisterer(reg))
			publishNumbers(s, "k", 10)
			cfg := quickConfig(c.kind, c.order)
			cfg.Concurrency = 1
			lost := s.Ignore(fakebroker.OpAck, topic, fakebroker.Always)
			release, entered := make(chan struct{}), make(chan struct{}, 10)
			var got payloads
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				if string(d.Payload) == "5" {
					entered <- struct{}{}
					<-release
				}
				got.add(d)
				return nil
			})
			<-entered
			require.NoError(t, lost.Wait(testContext(t), 1))
			eventually(t, "all are here", func() bool { return received(t, reg) == 10 })
			// What was acknowledged a moment before counts as lost with the connection.
			require.Never(t, func() bool { return received(t, reg) > 10 }, 300*time.Millisecond, 50*time.Millisecond)
			s.CutConnections()
			lost.Remove()
			eventually(t, "the session ends", func() bool {
				return counted(t, reg, "aviary_messaging_resubscribes_total", "sub", "rewound") == 1
			})
			close(release)
			eventually(t, "all is acknowledged", func() bool { return s.Acked(topic, "sub") == 10 })
			r.stop(t)
			want := append(numbered(6), numbered(10)...)
			if c.order == messaging.OrderNone {
				require.ElementsMatch(t, want, got.list(), "from the broker's position on")
			} else {
				require.Equal(t, want, got.list(), "from the broker's position on, in order")
			}
			require.Equal(t, 1, counted(t, reg, "aviary_messaging_resubscribes_total", "sub", "rewound"))
		})
	}
}

// What others acknowledged of a batch one by one does not come, and nothing follows it.
func TestRestOfTheLastBatchIsAcknowledged(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.Shared} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 0)
			client := dial(t, s.URL())
			var batch []fakebroker.Message
			for _, n := range numbered(3) {
				batch = append(batch, fakebroker.Message{Key: n, Payload: []byte(n)})
			}
			s.PublishBatch(topic, fakebroker.None, batch...)
			single := quickConfig(kind, "")
			single.AckBatchIndex = true
			single.Retry.InPlace, single.Retry.MinDelay, single.Retry.MaxDelay = true, time.Hour, time.Hour
			r := start(t, client, single, func(_ context.Context, d *messaging.Delivery) error {
				if string(d.Payload) == "2" {
					return errors.New("later")
				}
				return nil
			})
			eventually(t, "two of three are acknowledged", func() bool { return s.Backlog(topic, "sub") == 1 })
			r.stop(t)
			var got payloads
			r = start(t, client, quickConfig(kind, ""), func(_ context.Context, d *messaging.Delivery) error {
				got.add(d)
				return nil
			})
			eventually(t, "the batch is acknowledged", func() bool { return s.Backlog(topic, "sub") == 0 })
			r.stop(t)
			require.Equal(t, []string{"2"}, got.list())
		})
	}
}

// A partition that cannot connect keeps acknowledgements waiting, but not those of the end.
func TestWhatWaitsForABrokerIsAcknowledgedAtTheEnd(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	here, lost := topic+"-partition-0", topic+"-partition-1"
	cfg := quickConfig(messaging.Exclusive, messaging.OrderKey)
	release, entered := make(chan struct{}), make(chan struct{}, 1)
	r := start(t, dial(t, s.URL()), cfg, func(context.Context, *messaging.Delivery) error {
		entered <- struct{}{}
		<-release
		return nil
	})
	require.NoError(t, s.WaitConsumers(testContext(t), here, "sub", 1))
	require.NoError(t, s.WaitConsumers(testContext(t), lost, "sub", 1))
	s.PublishBatch(here, fakebroker.None, fakebroker.Message{Key: "k", Payload: []byte("0")})
	<-entered
	refused := s.FailSubscribe(lost, fakebroker.ServiceNotReady, fakebroker.Always)
	s.CloseConsumers(lost)
	require.NoError(t, refused.Wait(testContext(t), 1))
	close(release)
	r.stop(t)
	require.Zero(t, s.Backlog(here, "sub"))
}

// On Key_Shared a message can come that stands before what was received: one of a consumer that has
// left. What is completed is not forgotten for it: an acknowledgement that is lost then does not
// take its key back in time.
func TestOlderMessageOfAnotherKeyForgetsNothing(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	mine, other := keyOfConsumer(0), keyOfConsumer(1)
	cfg := quickConfig(messaging.KeyShared, messaging.OrderKey)
	cfg.StopTimeout = 10 * time.Millisecond
	var got payloads
	client := dial(t, s.URL())
	messaging.SetAckLanding(client, await.Patience)
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	})
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 1))
	taken := make(chan struct{}, 1)
	leaving := start(t, dial(t, s.URL()), cfg, func(ctx context.Context, _ *messaging.Delivery) error {
		taken <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 2))
	s.Publish(topic, fakebroker.Message{Key: other, Payload: []byte("other")})
	<-taken
	lost := s.Ignore(fakebroker.OpAck, topic, 1)
	s.Publish(topic, fakebroker.Message{Key: mine, Payload: []byte("1")})
	require.NoError(t, lost.Wait(testContext(t), 1))
	leaving.stop(t)
	eventually(t, "the other's message is handled", func() bool { return len(got.list()) == 2 })
	s.Publish(topic, fakebroker.Message{Key: mine, Payload: []byte("2")})
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 2))
	s.CloseConsumers(topic)
	eventually(t, "all is acknowledged", func() bool { return s.Acked(topic, "sub") == 3 })
	r.stop(t)
	require.Equal(t, []string{"1", "other", "2"}, got.list())
}

// keyOfConsumer is a key that the server gives to the consumer of two with that index.
func keyOfConsumer(consumer uint32) string {
	for i := 0; ; i++ {
		h := fnv.New32a()
		_, _ = h.Write([]byte(strconv.Itoa(i)))
		if h.Sum32()%2 == consumer {
			return strconv.Itoa(i)
		}
	}
}
