package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/history"
	"github.com/aviaryhq/aviary/test/proxy"
)

// TestConsumersSurviveBrokerFaults breaks the broker, or the way to it, under load,
// and counts at the handlers.
func TestConsumersSurviveBrokerFaults(t *testing.T) {
	t.Parallel()
	url, srv, line := faultyPulsar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url, ListenerName: proxy.Listener})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close(ctx)) }()

	kinds := []messaging.SubscriptionType{messaging.Shared, messaging.Failover, messaging.KeyShared}
	topic := srv.Topic(t, srv.Namespace(t), 0)
	got := make([]*seen, len(kinds))
	runs := make([]*running, len(kinds))
	for i, kind := range kinds {
		cfg := consumerConfig(topic, kind)
		cfg.Subscription = string(kind)
		cfg.Retry.InPlace = true
		got[i] = newSeen()
		runs[i] = start(t, client, cfg, got[i].handle)
	}
	p, err := client.Publisher(ctx, topic, messaging.Ops())
	require.NoError(t, err)
	var acked atomic.Int64
	flooding, stopFlood := context.WithCancel(ctx)
	flooded := make(chan int, 1)
	go func() {
		n := 0
		for tick := time.NewTicker(2 * time.Millisecond); flooding.Err() == nil; <-tick.C {
			p.PublishAsync(ctx, record(n), func(_ messaging.MessageID, err error) {
				if err == nil {
					acked.Add(1)
				}
			})
			n++
		}
		flooded <- n
	}()
	// on waits until every consumer has handled n further messages.
	on := func(n int) {
		t.Helper()
		want := make([]int, len(kinds))
		for i := range kinds {
			want[i] = got[i].count() + n
		}
		if !assert.Eventually(t, func() bool {
			for i := range kinds {
				if got[i].count() < want[i] {
					return false
				}
			}
			return true
		}, await.Patience, 5*time.Millisecond, "consumers go on by themselves") {
			for i, kind := range kinds {
				t.Logf("%s: handled %d of %d", kind, got[i].count(), want[i])
			}
			t.Logf("stored %d; the publisher: %v", acked.Load(), p.Unhealthy())
			var stats any
			path := "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + "/stats"
			err := srv.Admin(ctx, "GET", path, nil, &stats)
			t.Logf("the broker: %v %v", stats, err)
			t.FailNow()
		}
	}
	on(100)
	for _, fault := range []struct {
		name   string
		strike func()
	}{
		{"topic unloaded", func() { srv.Unload(t, topic) }},
		{"connections cut", func() {
			line.Cut()
			require.NoError(t, line.Restore())
		}},
		{"SIGSTOP", func() {
			require.NoError(t, srv.Pause())
			before := got[0].count()
			require.Never(t, func() bool { return got[0].count() > before+2000 }, time.Second, 100*time.Millisecond)
			require.NoError(t, srv.Resume())
		}},
		{"SIGKILL", func() {
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Start(ctx))
		}},
	} {
		t.Run(fault.name, func(*testing.T) {
			fault.strike()
			on(200)
		})
	}
	stopFlood()
	n := <-flooded
	require.NoError(t, p.Close(ctx))
	require.EqualValues(t, n, acked.Load(), "all was stored")
	for i, kind := range kinds {
		require.Eventually(t, func() bool { return got[i].count() == n }, await.Patience, 5*time.Millisecond,
			"%s: nothing is lost", kind)
		if kind != messaging.Shared {
			require.Empty(t, got[i].late, "%s: what is handled for the first time is in its key's order", kind)
		}
		// On Key_Shared subscriptions entries are acknowledged one by one: docs/guarantees.md.
		followed := kind == messaging.Exclusive || kind == messaging.Failover
		if followed {
			if !assert.Eventually(t, func() bool { return len(got[i].overtaken()) == 0 }, await.Patience, 5*time.Millisecond) {
				require.Empty(t, got[i].overtaken(), "%s: what came again is followed by all behind it", kind)
			}
		}
		runs[i].stop(t)
		if followed {
			require.Empty(t, got[i].overtaken(), "%s: order per key holds", kind)
		}
	}
}

// seen notes which of record(0), record(1)... a handler has had, and whether each key's
// were had in their order: what is had again is followed by all behind it.
type seen struct {
	mu     sync.Mutex
	had    map[int]bool
	keys   [7]history.Sequence
	newest [7]int // by key: how many there are
	wrong  []error
	late   []int // handled for the first time behind a newer one of their key
}

func newSeen() *seen { return &seen{had: make(map[int]bool)} }

func (s *seen) handle(_ context.Context, d *messaging.Delivery) error {
	i, err := strconv.Atoi(string(d.Payload))
	if err != nil {
		return messaging.Reject(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.had[i] && i/7 < s.newest[i%7] {
		s.late = append(s.late, i)
	}
	s.had[i] = true
	s.newest[i%7] = max(s.newest[i%7], i/7+1)
	if err := s.keys[i%7].See(i / 7); err != nil {
		s.wrong = append(s.wrong, fmt.Errorf("key %d: %w", i%7, err))
	}
	return nil
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.had)
}

// overtaken says what is out of order: that the newest of each key was had last, too, so it
// is asked for behind the end.
func (s *seen) overtaken() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wrong := s.wrong
	for k := range s.keys {
		if err := s.keys[k].End(s.newest[k]); err != nil {
			wrong = append(wrong, fmt.Errorf("key %d: %w", k, err))
		}
	}
	return wrong
}

// While the broker is unavailable, a stopped Run returns in its time, and nothing that a
// handler failed on is lost.
func TestRunReturnsDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	s.Publish(topic, fakebroker.Message{Payload: []byte("0")}, fakebroker.Message{Payload: []byte("1")})
	cfg := consumerConfig(topic, messaging.Shared)
	cfg.StopTimeout = 200 * time.Millisecond
	entered := make(chan struct{}, 2)
	r := start(t, client, cfg, func(ctx context.Context, _ *messaging.Delivery) error {
		entered <- struct{}{}
		return errors.New("to the retry topic, which does not answer")
	})
	s.Ignore(fakebroker.OpProducer, "", fakebroker.Always)
	<-entered
	s.Stall()
	r.stop(t) // while the broker still does not answer
	s.Resume()
	require.Zero(t, s.Acked(topic, "sub"))
}

func TestResubscribesWhenTheBrokerClosesIt(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	s.CreateTopic(topic, 2)
	got := newSeen()
	cfg := consumerConfig(topic, messaging.Failover)
	cfg.AckEvery = time.Millisecond
	r := start(t, client, cfg, got.handle)
	ctx := testContext(t)
	sent := 0
	send := func() {
		for range 50 {
			s.Publish(topic, fakebroker.Message{Key: "k" + strconv.Itoa(sent%7), Payload: []byte(strconv.Itoa(sent))})
			sent++
		}
	}
	send()
	eventually(t, "handled and acknowledged", func() bool { return s.Acked(topic, "sub") == sent })

	s.CloseConsumers(topic)
	send()
	eventually(t, "after a close command", func() bool { return got.count() == sent })

	for reason, code := range map[string]fakebroker.ServerError{
		"busy": fakebroker.ConsumerBusy, "unauthorized": fakebroker.AuthorizationError, "topic_not_found": fakebroker.TopicNotFound,
	} {
		eventually(t, "acknowledged", func() bool { return s.Acked(topic, "sub") == sent })
		fail := s.FailSubscribe(topic, code, 3)
		s.CloseConsumers(topic)
		require.NoError(t, fail.Wait(ctx, 3))
		send()
		eventually(t, "after "+reason, func() bool { return got.count() == sent })
		require.Equal(t, 1, counted(t, reg, "aviary_messaging_resubscribes_total", "sub", reason), reason)
	}
	r.stop(t)
	require.Empty(t, got.overtaken())
	require.Equal(t, sent, s.Acked(topic, "sub"))
}

func TestSubscribesOnceTheBrokerIsThere(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	s.Publish(topic, fakebroker.Message{Payload: []byte("0")})
	s.RefuseConnections(true)
	s.FailSubscribe(topic, fakebroker.ServiceNotReady, 2)
	got := newSeen()
	r := start(t, client, consumerConfig(topic, messaging.Shared), got.handle)
	accepted := s.Accepted()
	eventually(t, "it tried", func() bool { return s.Accepted() > accepted })
	s.RefuseConnections(false)
	eventually(t, "handled", func() bool { return got.count() == 1 })
	r.stop(t)
}

// A copy that cannot be stored is tried again for as long as it takes, and the
// original is not acknowledged before.
func TestDeadLetterTopicIsUnavailable(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialImpatient(t, s.URL(), time.Second)
	s.Publish(topic, fakebroker.Message{Key: "a", Payload: []byte("bad")}, fakebroker.Message{Key: "b", Payload: []byte("good")})
	fail := s.Ignore(fakebroker.OpProducer, topic+"-sub-DLQ", fakebroker.Always)
	var bad, good atomic.Int32
	cfg := consumerConfig(topic, messaging.KeyShared)
	cfg.Concurrency = 1 // waiting for a topic must not occupy the only worker
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		if string(d.Payload) == "bad" {
			bad.Add(1)
			return messaging.Reject(errors.New("never"))
		}
		good.Add(1)
		return nil
	})
	require.NoError(t, fail.Wait(testContext(t), 1))
	eventually(t, "the other one is done", func() bool { return good.Load() == 1 && s.Acked(topic, "sub") == 1 })
	require.Empty(t, s.Entries(topic+"-sub-DLQ"))
	fail.Remove()
	eventually(t, "stored and acknowledged", func() bool { return s.Acked(topic, "sub") == 2 })
	require.Len(t, s.Entries(topic+"-sub-DLQ"), 1)
	require.EqualValues(t, 1, bad.Load(), "the handler has spoken")
	r.stop(t)
}

// What a broker delivers again after a reconnect, while the first copy is still
// being handled, is not handled twice.
func TestRedeliveryOfUnfinishedIsDropped(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	for i := range 40 {
		s.Publish(topic, fakebroker.Message{Key: "k" + strconv.Itoa(i%7), Payload: []byte(strconv.Itoa(i))})
	}
	release := make(chan struct{})
	var calls atomic.Int32
	got := newSeen()
	cfg := consumerConfig(topic, messaging.Exclusive)
	cfg.MaxMessageBytes = 1 << 10
	r := start(t, client, cfg, func(ctx context.Context, d *messaging.Delivery) error {
		calls.Add(1)
		<-release
		return got.handle(ctx, d)
	})
	eventually(t, "all keys are being handled", func() bool { return calls.Load() == 7 })
	ctx := testContext(t)
	flows := s.Received(fakebroker.CommandFlow)
	s.CutConnections()
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandFlow, flows+1), "subscribed again")
	// Something new, so that what was delivered again has certainly arrived.
	s.Publish(topic, fakebroker.Message{Key: "new", Payload: []byte("40")})
	eventually(t, "the new one is there", func() bool { return calls.Load() == 8 })
	close(release)
	eventually(t, "all are handled", func() bool { return got.count() == 41 })
	r.stop(t)
	require.EqualValues(t, 41, calls.Load(), "each once")
	require.Equal(t, 41, s.Acked(topic, "sub"))
}

// The underlying Subscribe can hang for good (test/fakebroker, TestClientSubscribeHangs).
// It is given up and made again.
func TestSubscribeThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialImpatient(t, s.URL(), time.Second)
	s.CreateTopic(topic, 2)
	s.Publish(topic, fakebroker.Message{Key: "a", Payload: []byte("0")})
	never := s.Ignore(fakebroker.OpSubscribe, topic+"-partition-1", 1)
	got := newSeen()
	r := start(t, client, consumerConfig(topic, messaging.Failover), got.handle)
	ctx := testContext(t)
	require.NoError(t, never.Wait(ctx, 1))
	require.NoError(t, s.WaitConsumers(ctx, topic, "sub", 1))
	lookups := s.Received(fakebroker.CommandLookup)
	s.CloseConsumers(topic + "-partition-0")
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandLookup, lookups+1))
	s.CutConnections()
	eventually(t, "handled by the next one", func() bool { return got.count() == 1 })
	r.stop(t)
}
