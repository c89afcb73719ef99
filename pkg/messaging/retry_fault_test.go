package messaging_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

const (
	retries     = topic + "-sub-RETRY"
	deadLetters = topic + "-sub-DLQ"
)

// handledAs is how many verdicts of the subscription sub had a result.
func handledAs(t *testing.T, reg *prometheus.Registry, result string) int {
	t.Helper()
	return counted(t, reg, "aviary_messaging_handled_messages_total", "sub", result)
}

// failedCopies is how many copies were not stored for a reason.
func failedCopies(t *testing.T, reg *prometheus.Registry, reason string) int {
	t.Helper()
	return counted(t, reg, "aviary_messaging_failed_copies_total", "sub", reason)
}

// Brokers delete what no subscription waits for: a copy is not stored, and its original not
// acknowledged, before the retry topic has one. Meanwhile attempts are made in place.
func TestRetryTopicWithoutSubscription(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	refused := s.FailSubscribe(retries, fakebroker.AuthorizationError, fakebroker.Always)
	s.Publish(topic, fakebroker.Message{Payload: []byte("x")})
	var attempts atomic.Int32
	var good atomic.Bool
	cfg := consumerConfig(topic, messaging.Shared)
	cfg.Retry.MaxAttempts = 0
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		attempts.Store(int32(d.Attempt))
		if good.Load() {
			return nil
		}
		return errors.New("again")
	})
	eventually(t, "attempts in place", func() bool { return attempts.Load() >= 3 })
	require.Zero(t, s.Acked(topic, "sub"))
	require.Empty(t, s.Entries(retries))
	require.NotZero(t, failedCopies(t, reg, "no_subscription"))
	refused.Remove()
	ctx := testContext(t)
	require.NoError(t, s.WaitEntries(ctx, retries, 1))
	require.NoError(t, s.WaitAcked(ctx, topic, "sub", 1))
	good.Store(true)
	eventually(t, "nothing is left", func() bool { return s.Backlog(retries, "sub") == 0 })
	r.stop(t)
	require.Greater(t, int(attempts.Load()), 3, "they go on counting")
}

// The same for dead letters, unless it is asked for.
func TestDeadLettersWithoutSubscription(t *testing.T) {
	t.Parallel()
	reject := func(_ context.Context, d *messaging.Delivery) error {
		if d.Key == "bad" {
			return messaging.Reject(errors.New("never"))
		}
		return nil
	}
	t.Run("refused", func(t *testing.T) {
		s := fakebroker.Start(t)
		reg := prometheus.NewRegistry()
		client := dial(t, s.URL(), messaging.WithRegisterer(reg))
		refused := s.FailSubscribe(deadLetters, fakebroker.AuthorizationError, fakebroker.Always)
		s.Publish(topic, fakebroker.Message{Key: "bad", Payload: []byte("bad")}, fakebroker.Message{Key: "good", Payload: []byte("good")})
		r := start(t, client, consumerConfig(topic, messaging.KeyShared), reject)
		ctx := testContext(t)
		require.NoError(t, refused.Wait(ctx, 2))
		require.NoError(t, s.WaitAcked(ctx, topic, "sub", 1), "the other key goes on")
		eventually(t, "it is counted", func() bool { return failedCopies(t, reg, "no_subscription") > 0 })
		require.Empty(t, s.Entries(deadLetters))
		refused.Remove()
		require.NoError(t, s.WaitAcked(ctx, topic, "sub", 2))
		r.stop(t)
		require.Equal(t, 1, s.Backlog(deadLetters, "sub"))
	})
	t.Run("none by choice", func(t *testing.T) {
		s := fakebroker.Start(t)
		client := dial(t, s.URL())
		refused := s.FailSubscribe(deadLetters, fakebroker.AuthorizationError, fakebroker.Always)
		s.Publish(topic, fakebroker.Message{Key: "bad", Payload: []byte("bad")})
		cfg := consumerConfig(topic, messaging.Exclusive)
		cfg.Retry.DeadLetterSubscription = "-"
		r := start(t, client, cfg, reject)
		require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
		r.stop(t)
		require.Len(t, s.Entries(deadLetters), 1)
		require.Zero(t, refused.Hits())
	})
	t.Run("read by a consumer of another type", func(t *testing.T) {
		s := fakebroker.Start(t)
		client := dial(t, s.URL())
		reader := start(t, client, consumerConfig(deadLetters, messaging.Exclusive), func(context.Context, *messaging.Delivery) error { return nil })
		ctx := testContext(t)
		require.NoError(t, s.WaitConsumers(ctx, deadLetters, "sub", 1))
		s.Publish(topic, fakebroker.Message{Key: "bad", Payload: []byte("bad")})
		r := start(t, client, consumerConfig(topic, messaging.Exclusive), reject)
		require.NoError(t, s.WaitAcked(ctx, deadLetters, "sub", 1))
		r.stop(t)
		reader.stop(t)
	})
}

// The underlying Subscribe on several partitions can hang for good when one of them does not answer
// (test/fakebroker, TestClientSubscribeHangs). Dead letters must not wait for that until Run ends.
func TestDeadLetterTopicThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	s.CreateTopic(deadLetters, 2)
	s.Publish(topic, fakebroker.Message{Key: "a", Payload: []byte("0")})
	never := s.Ignore(fakebroker.OpSubscribe, deadLetters+"-partition-1", 1)
	r := start(t, client, consumerConfig(topic, messaging.Exclusive), func(context.Context, *messaging.Delivery) error {
		return messaging.Reject(errors.New("never"))
	})
	ctx := testContext(t)
	require.NoError(t, never.Wait(ctx, 1))
	lookups := s.Received(fakebroker.CommandLookup)
	s.CutConnections()
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandLookup, lookups+1))
	require.NoError(t, s.WaitAcked(ctx, topic, "sub", 1))
	r.stop(t)
	require.Len(t, s.Entries(deadLetters), 1)
	require.Equal(t, 1, s.Backlog(deadLetters, "sub"))
	require.Empty(t, s.Consumers(deadLetters, "sub"), "none is left behind")
}

// A dead letter that its topic refuses for good does not block the others, and is counted as what
// became of it.
func TestUnstorableDeadLetters(t *testing.T) {
	t.Parallel()
	const limit = 2000
	large := make([]byte, limit-100)
	_, _ = rand.Read(large)
	for _, c := range []struct {
		name       string
		payload    []byte
		property   string
		terminated bool
		result     string
		acked      int
		goesOn     bool // the key
	}{
		{"too large, truncated", large, "q", false, "dead_letter_truncated", 3, true},
		{"properties too large, parked", large[:100], strings.Repeat("q", 2*limit), false, "dead_letter_parked", 1, false},
		{"terminated, parked", large, "q", true, "dead_letter_parked", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t, fakebroker.WithMaxMessageSize(limit))
			reg := prometheus.NewRegistry()
			client := dial(t, s.URL(), messaging.WithRegisterer(reg))
			reason := "too_large"
			if c.terminated {
				reason = "terminated"
				s.FailProducerCreate(deadLetters, fakebroker.TopicTerminatedError, fakebroker.Always)
			}
			s.Publish(topic, fakebroker.Message{Key: "a", Payload: c.payload, Properties: map[string]string{"p": c.property}},
				fakebroker.Message{Key: "a", Payload: []byte("next")}, fakebroker.Message{Key: "b", Payload: []byte("other")})
			cfg := consumerConfig(topic, messaging.KeyShared)
			cfg.MaxMessageBytes = 4 << 10
			var next atomic.Int32
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				switch len(d.Payload) {
				case len(c.payload):
					return messaging.Reject(errors.New("never"))
				case len("next"):
					next.Add(1)
				}
				return nil
			})
			eventually(t, c.result, func() bool { return handledAs(t, reg, c.result) == 1 })
			require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", c.acked))
			r.stop(t)
			require.Equal(t, c.acked, s.Acked(topic, "sub"))
			require.Equal(t, c.goesOn, next.Load() == 1)
			require.NotZero(t, failedCopies(t, reg, reason))
			require.Zero(t, handledAs(t, reg, "dead_letter"))
			letters := s.Entries(deadLetters)
			if c.result != "dead_letter_truncated" {
				require.Empty(t, letters)
				return
			}
			require.Len(t, letters, 1)
			letter := letters[0]
			require.Equal(t, "1900", letter.Properties[messaging.PropertyTruncated])
			require.Equal(t, "never", letter.Properties[messaging.PropertyReason])
			require.Equal(t, "q", letter.Properties["p"])
			require.Equal(t, large[:len(letter.Payload)], letter.Payload)
			require.Greater(t, len(letter.Payload), limit/2)
		})
	}
}

// A broker whose delayed delivery is switched off delivers copies at once, as this one does. The
// attempt is made when it is due all the same.
func TestCopyDeliveredEarlyIsHeld(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	s.Publish(topic, fakebroker.Message{Payload: []byte("later")})
	cfg := consumerConfig(topic, messaging.Shared)
	cfg.Concurrency = 1
	var got consumed
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		if string(d.Payload) == "later" {
			return messaging.RetryAfter(errors.New("not now"), time.Hour)
		}
		return nil
	})
	eventually(t, "the copy is here", func() bool { return counted(t, reg, "aviary_messaging_received_messages_total", "sub") == 2 })
	s.Publish(topic, fakebroker.Message{Payload: []byte("next")})
	eventually(t, "the one behind it is handled", func() bool { return len(got.snapshot()) == 2 })
	r.stop(t)
	require.Equal(t, "next", string(got.snapshot()[1].Payload))
	require.Equal(t, 1, s.Backlog(retries, "sub"), "and stays there when the consumer leaves")
}

// A retry must have all of the message: one whose copy is too large stays in place.
func TestRetryTooLargeForTheTopicIsHeld(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithMaxMessageSize(2000))
	client := dial(t, s.URL())
	large := make([]byte, 1900)
	_, _ = rand.Read(large)
	s.Publish(topic, fakebroker.Message{Payload: large})
	var attempts atomic.Int32
	r := start(t, client, consumerConfig(topic, messaging.Shared), func(_ context.Context, d *messaging.Delivery) error {
		if attempts.Add(1); d.Attempt < 3 {
			return errors.New("again")
		}
		if len(d.Payload) != len(large) {
			return messaging.Reject(errors.New("not whole"))
		}
		return nil
	})
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
	r.stop(t)
	require.EqualValues(t, 3, attempts.Load())
	require.Empty(t, s.Entries(retries))
	require.Empty(t, s.Entries(deadLetters))
}

// What a copy does not carry is lost: everything that a message has passes through the retry and
// the dead-letter topic, and through those of whoever reads dead letters.
func TestCopiesKeepTheWholeMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	at := time.UnixMilli(1_700_000_000_000)
	own := map[string]string{
		messaging.PropertyReason: "the user's", messaging.PropertyOriginTopic: "elsewhere", "aviary_tenant": "t", "user": "u",
	}
	s.Publish(topic, fakebroker.Message{Key: "k", OrderingKey: "o", NullValue: true, EventTime: at, Properties: own})
	var got consumed
	r := start(t, client, consumerConfig(topic, messaging.Shared), func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		if d.Attempt == 1 {
			return errors.New("again")
		}
		return messaging.Reject(errors.New("never"))
	})
	ctx := testContext(t)
	require.NoError(t, s.WaitEntries(ctx, deadLetters, 1))
	r.stop(t)

	var letters consumed
	r = start(t, client, consumerConfig(deadLetters, messaging.Shared), func(_ context.Context, d *messaging.Delivery) error {
		letters.add(d)
		if d.Attempt == 1 {
			return errors.New("again")
		}
		return nil
	})
	eventually(t, "read twice", func() bool { return len(letters.snapshot()) == 2 })
	r.stop(t)

	for _, d := range got.snapshot() {
		require.Equal(t, own, d.Properties, "attempt %d", d.Attempt)
	}
	first, again := letters.snapshot()[0], letters.snapshot()[1]
	require.Equal(t, first.Properties, again.Properties, "reason and origin are still there")
	require.Equal(t, deadLetters, again.Topic)
	for _, d := range []messaging.Delivery{first, again} {
		letter, ok := d.DeadLetter()
		require.True(t, ok)
		require.Equal(t, "never", letter.Reason)
		require.Equal(t, "sub", letter.Subscription)
		require.Equal(t, 2, letter.Attempt)
		require.False(t, letter.FirstFailed.IsZero())
		require.Equal(t, own, letter.Properties)
		require.Equal(t, topic, letter.Topic)
		require.Equal(t, got.snapshot()[0].ID.Bytes(), letter.ID.Bytes())
		require.Equal(t, []string{"k", "o"}, []string{letter.Key, letter.OrderingKey})
		require.True(t, at.Equal(letter.EventTime))
		require.Nil(t, letter.Payload)
		require.Zero(t, letter.Truncated)
	}
	_, ok := (&messaging.Delivery{Properties: own}).DeadLetter()
	require.False(t, ok, "no dead letter")
}

// A payload that is empty and one that is null are different things, and stay so.
func TestCopiesKeepEmptyPayloads(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	own := map[string]string{"a": "b"} // without any, the client underneath drops what is empty
	s.Publish(topic, fakebroker.Message{Key: "empty", Properties: own}, fakebroker.Message{Key: "null", NullValue: true, Properties: own})
	var got consumed
	r := start(t, client, consumerConfig(topic, messaging.Shared), func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		if d.Attempt == 1 {
			return errors.New("again")
		}
		return nil
	})
	ctx := testContext(t)
	require.NoError(t, s.WaitAcked(ctx, topic, "sub", 2))
	require.NoError(t, s.WaitAcked(ctx, retries, "sub", 2))
	r.stop(t)
	require.Len(t, got.snapshot(), 4)
	for _, d := range got.snapshot() {
		require.Empty(t, d.Payload, "attempt %d at %s", d.Attempt, d.Key)
		require.Equal(t, d.Key == "null", d.Payload == nil, "attempt %d at %s", d.Attempt, d.Key)
	}
}

// A dead letter whose payload is empty goes back as it was.
func TestEmptyPayloadsGoBackEmpty(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	s.CreateTopic(topic, 0)
	s.PublishBatch(topic, fakebroker.None, fakebroker.Message{Key: "k", Payload: []byte{}}, fakebroker.Message{Key: "l", Payload: []byte("x")})
	c, err := client.Consumer(quickConfig(messaging.Exclusive, ""))
	require.NoError(t, err)
	_, err = c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
		if d.Key == "k" {
			return messaging.Reject(errors.New("no"))
		}
		return nil
	})
	require.NoError(t, err)
	messaging.SetRedriveIdle(client, 100*time.Millisecond)
	result, err := client.Redrive(testContext(t), messaging.RedriveConfig{Topic: deadLetters, Subscription: "sub"})
	require.NoError(t, err)
	require.Equal(t, 1, result.Redriven)
	all := drain(t, client, topic)
	require.Len(t, all, 3)
	require.Equal(t, []byte{}, all[2].Payload)
	require.Empty(t, all[2].Properties)
}

// A broker that deduplicates answers a copy as it does a stored one when it drops it: the original
// is acknowledged only for a copy that has a place.
func TestCopyTakenForADuplicateIsSentAgain(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	s.CreateTopic(deadLetters, 0)
	lost := s.DropReceipts(deadLetters, 1)
	s.Publish(topic, fakebroker.Message{Payload: []byte("x")})
	r := start(t, client, quickConfig(messaging.Exclusive, ""), func(context.Context, *messaging.Delivery) error {
		return messaging.Reject(errors.New("no"))
	})
	ctx := testContext(t)
	require.NoError(t, s.WaitEntries(ctx, deadLetters, 1))
	lost.Remove()
	s.CutConnections() // the client underneath sends the copy again, under the same sequence id
	require.NoError(t, s.WaitAcked(ctx, topic, "sub", 1))
	r.stop(t)
	require.Equal(t, 1, failedCopies(t, reg, "other"), "the duplicate")
	require.Equal(t, 2, s.Count(deadLetters))
}

// panicking is an error whose text panics.
type panicking struct{}

func (panicking) Error() string { panic("no text") }

// What a service gives besides its handler may panic, too: the message is tried again, and goes to
// the dead-letter topic in the end.
func TestPanicsBesideTheHandlerAreVerdicts(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"text of an error": panicking{},
		"of a rejection":   messaging.Reject(panicking{}),
	} {
		t.Run(name, func(t *testing.T) {
			s := fakebroker.Start(t)
			reg := prometheus.NewRegistry()
			s.Publish(topic, fakebroker.Message{Payload: []byte("x")})
			cfg := quickConfig(messaging.Exclusive, "")
			cfg.Retry.MaxAttempts = 2
			var attempts atomic.Int32
			r := start(t, dial(t, s.URL(), messaging.WithRegisterer(reg)), cfg, func(context.Context, *messaging.Delivery) error {
				attempts.Add(1)
				return failure
			})
			require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
			r.stop(t)
			require.EqualValues(t, 2, attempts.Load())
			require.Equal(t, 1, handledAs(t, reg, "dead_letter"))
		})
	}
}

// Each subscription that shares a retry topic handles its own copies only, and keeps no backlog of
// others'.
func TestSubscriptionsShareARetryTopic(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	s.Publish(topic, fakebroker.Message{Payload: []byte("x")})
	other := consumerConfig(topic, messaging.Shared)
	other.Retry.Topic = "shared"
	own := other
	own.Subscription = "own"
	var handled, others atomic.Int32
	ro := start(t, client, other, func(context.Context, *messaging.Delivery) error { others.Add(1); return nil })
	ctx := testContext(t)
	require.NoError(t, s.WaitConsumers(ctx, "shared", "sub", 1))
	r := start(t, client, own, func(_ context.Context, d *messaging.Delivery) error {
		if handled.Add(1); d.Attempt < 3 {
			return errors.New("again")
		}
		return nil
	})
	require.NoError(t, s.WaitAcked(ctx, "shared", "own", 2))
	require.NoError(t, s.WaitAcked(ctx, "shared", "sub", 2))
	r.stop(t)
	ro.stop(t)
	require.EqualValues(t, 3, handled.Load())
	require.EqualValues(t, 1, others.Load(), "the original")
	require.Equal(t, 2, handledAs(t, reg, "other_subscription"))
}

// Another consumer handles the messages of a Failover partition that was lost.
func TestNothingIsCopiedAfterThePartitionWasLost(t *testing.T) {
	t.Parallel()
	t.Run("a verdict behind the loss", func(t *testing.T) {
		s := fakebroker.Start(t)
		cfg := quickConfig(messaging.Failover, messaging.OrderKey)
		publishNumbers(s, "k", 1)
		release, entered := make(chan struct{}), make(chan struct{}, 1)
		first := start(t, dial(t, s.URL()), cfg, func(context.Context, *messaging.Delivery) error {
			entered <- struct{}{}
			<-release
			return messaging.Reject(errors.New("never"))
		})
		<-entered
		second := handover(t, s, cfg, func(context.Context, *messaging.Delivery) error { return nil })
		close(release)
		require.Never(t, func() bool { return s.Count(deadLetters) > 0 }, 200*time.Millisecond, 5*time.Millisecond)
		first.stop(t)
		second.stop(t)
	})
	t.Run("a copy that could not be stored before", func(t *testing.T) {
		s := fakebroker.Start(t)
		cfg := quickConfig(messaging.Failover, messaging.OrderKey)
		publishNumbers(s, "k", 1)
		unavailable := s.Ignore(fakebroker.OpProducer, deadLetters, fakebroker.Always)
		first := start(t, dialImpatient(t, s.URL(), time.Second), cfg, func(context.Context, *messaging.Delivery) error {
			return messaging.Reject(errors.New("never"))
		})
		require.NoError(t, unavailable.Wait(testContext(t), 1))
		second := handover(t, s, cfg, func(context.Context, *messaging.Delivery) error { return nil })
		unavailable.Remove()
		require.NoError(t, s.WaitProducers(testContext(t), deadLetters, 1))
		require.Never(t, func() bool { return s.Count(deadLetters) > 0 }, 200*time.Millisecond, 5*time.Millisecond)
		first.stop(t)
		second.stop(t)
	})
}
