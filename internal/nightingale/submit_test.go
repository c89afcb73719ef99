package nightingale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// TestRetriedBodyIsPublishedOnce: one body in each state that its first request may
// have left it in.
func TestRetriedBodyIsPublishedOnce(t *testing.T) {
	body := marshal(t, request(3, 2))
	t.Run("acknowledged", func(t *testing.T) {
		d := newDouble(t, nil)
		for _, headers := range [][]string{nil, {"Retry-Attempt", "1"}, nil} {
			status, text, _ := d.post(t, compress(body), headers...)
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Len(t, d.published(), 3)
		assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.repeated.WithLabelValues("answered")), 0)
		assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0, "counted once")
	})
	t.Run("still under way", func(t *testing.T) {
		d := newDouble(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond })
		acknowledge := make(chan struct{})
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			<-acknowledge
			return true, nil
		}
		for range 2 {
			status, text, header := d.post(t, compress(body))
			assert.Equal(t, http.StatusServiceUnavailable, status, text)
			assert.NotEmpty(t, header.Get("Retry-After"))
		}
		close(acknowledge)
		status, text, _ := d.post(t, compress(body))
		assert.Equal(t, http.StatusNoContent, status, text)
		assert.Len(t, d.published(), 3)
		assert.Zero(t, d.receiver.budget.Used())
	})
	t.Run("stored in part, the rest is too large", func(t *testing.T) {
		d := newDouble(t, nil)
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			return true, door.Invalid(reasonRecordTooLarge, "too large, the others were written")
		}
		for range 2 {
			status, _, _ := d.post(t, compress(body))
			assert.Equal(t, http.StatusBadRequest, status)
		}
		assert.Len(t, d.published(), 3)
	})
	t.Run("invalid in part", func(t *testing.T) {
		d := newDouble(t, nil)
		req := request(3, 2)
		req.Timeseries[0].Labels[1].Name = ""
		for range 2 {
			status, text, _ := d.post(t, compress(marshal(t, req)))
			assert.Equal(t, http.StatusBadRequest, status)
			assert.Contains(t, text, "1 of 3 series are invalid", "the same answer")
		}
		assert.Len(t, d.published(), 2)
	})
	t.Run("failed", func(t *testing.T) {
		d := newDouble(t, nil)
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			return true, door.Unavailable("pulsar_away", door.RetryAway, "away")
		}
		status, _, _ := d.post(t, compress(body))
		assert.Equal(t, http.StatusServiceUnavailable, status)
		d.mu.Lock()
		d.publish = nil
		d.mu.Unlock()
		status, text, _ := d.post(t, compress(body))
		assert.Equal(t, http.StatusNoContent, status, text)
		assert.Len(t, d.published(), 6, "nothing was stored the first time")
	})
	t.Run("refused", func(t *testing.T) {
		d := newDouble(t, nil)
		for range 2 {
			status, _, _ := d.post(t, compress([]byte{0x0a, 0x03, 0xff, 0xff, 0xff}))
			assert.Equal(t, http.StatusBadRequest, status)
		}
		assert.InDelta(t, 0, testutil.ToFloat64(d.metrics.repeated.WithLabelValues("answered")), 0)
	})
	t.Run("of another tenant", func(t *testing.T) {
		d := newDouble(t, nil)
		for _, tenant := range []string{"a", "b", ""} {
			status, text, _ := d.post(t, compress(body), tenantHeader, tenant)
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Len(t, d.published(), 9)
	})
	t.Run("without dedup", func(t *testing.T) {
		d := newDouble(t, func(c *Config) { c.Dedup.Entries = 0 })
		for range 2 {
			status, text, _ := d.post(t, compress(body))
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Len(t, d.published(), 6)
	})
	t.Run("all at once", func(t *testing.T) {
		d := newDouble(t, nil)
		var senders sync.WaitGroup
		for range 8 {
			senders.Go(func() {
				status, text, _ := d.post(t, compress(body))
				assert.Equal(t, http.StatusNoContent, status, text)
			})
		}
		senders.Wait()
		assert.Len(t, d.published(), 3)
	})
}

// TestJoinedRequestsShareAFailure: nobody waits for an attempt that has ended, however
// it ended.
func TestJoinedRequestsShareAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Dedup{Entries: 10, Window: time.Minute})
		first := &claim{ledger: l}
		require.True(t, first.make([]byte("body")))
		second := &claim{ledger: l}
		require.False(t, second.make([]byte("body")))
		time.AfterFunc(time.Second, func() { first.give(errUnfinished) })
		_, err, settled := second.wait(t.Context())
		assert.True(t, settled)
		assert.ErrorIs(t, err, errUnfinished)
		first.give(door.ErrDisconnected) // again, as handle's defer does
		third := &claim{ledger: l}
		assert.True(t, third.make([]byte("body")), "it is forgotten")
	})
}

func TestLedgerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Dedup{Entries: 3, Window: time.Minute})
		claimed := func(body string) (*attempt, bool) { return l.claim(bodyKey{}, []byte(body)) }
		for i := range 10 {
			a, first := claimed(fmt.Sprint(i))
			require.True(t, first)
			l.settle(a, contents{}, delivered{})
			assert.LessOrEqual(t, l.order.Len(), 3)
			assert.Len(t, l.known, l.order.Len())
		}
		_, first := claimed("9")
		assert.False(t, first)
		<-time.After(2 * time.Minute) // the bubble's clock
		a, first := claimed("9")
		assert.True(t, first, "it is too old")
		assert.Zero(t, l.order.Len(), "and so were the others")
		assert.Len(t, l.known, 1)
		<-time.After(2 * time.Minute) // the bubble's clock
		_, first = claimed("9")
		assert.False(t, first, "one under way is never too old")
		for i := range 10 {
			more, first := claimed(fmt.Sprint("more", i))
			require.True(t, first)
			l.settle(more, contents{}, delivered{})
		}
		assert.Equal(t, 3, l.order.Len())
		_, first = claimed("9")
		assert.False(t, first, "nor does it give way to others")
		l.settle(a, contents{}, delivered{err: errors.New("whatever")})
		assert.Len(t, l.known, 3)
		_, first = claimed("9")
		assert.True(t, first, "it is to be published again")
	})
}

// TestDeliveryKeepsItsPlaceInTheBudget: messages of requests that ran out of time
// are still in memory.
func TestDeliveryKeepsItsPlaceInTheBudget(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.RequestTimeout = 20 * time.Millisecond })
	acknowledge := make(chan struct{})
	d.publish = func(context.Context, []messaging.Record) (bool, error) {
		<-acknowledge
		return true, nil
	}
	status, _, _ := d.post(t, compress(marshal(t, request(3, 2))))
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Positive(t, d.receiver.budget.Used())
	close(acknowledge)
	require.Eventually(t, func() bool { return d.receiver.budget.Used() == 0 }, 5*time.Second, time.Millisecond)
}

// TestMemoryIsBoundedWhileNothingIsAcknowledged: attempts that outlive their requests
// are refused room before they pile up, and give it back when they end.
func TestMemoryIsBoundedWhileNothingIsAcknowledged(t *testing.T) {
	d := newDouble(t, func(c *Config) {
		c.RequestTimeout = 5 * time.Millisecond
		c.Limits.CompressedBytes, c.Limits.DecodedBytes, c.Limits.InFlightBytes = 256*config.KiB, config.MiB, config.MiB+256*config.KiB
	})
	acknowledge := make(chan struct{})
	d.publish = func(context.Context, []messaging.Record) (bool, error) {
		<-acknowledge
		return true, nil
	}
	full := 0
	for i := range 60 {
		status, text, _ := d.post(t, compress(marshal(t, request(500+i, 3))))
		require.Equal(t, http.StatusServiceUnavailable, status)
		if strings.Contains(text, "in flight") {
			full++
		}
		assert.Less(t, d.receiver.budget.Used(), 2*d.receiver.budget.Limit())
	}
	assert.Greater(t, full, 20)
	close(acknowledge)
	require.Eventually(t, func() bool { return d.receiver.budget.Used() == 0 }, 5*time.Second, time.Millisecond)
	status, text, _ := d.post(t, compress(marshal(t, request(500, 3))))
	assert.Equal(t, http.StatusNoContent, status, text)
}

func TestClosingWaitsForDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeliveries(Dedup{Entries: 1, Window: time.Minute})
		d.running.Go(func() { <-d.background.Done(); <-time.After(time.Second) })
		began := time.Now()
		require.NoError(t, d.close(t.Context()))
		assert.Equal(t, time.Second, time.Since(began))
	})
}

// queuedSink is a running sink under ack: queued.
func queuedSink(t *testing.T, p *scripted) (*sink, prometheus.Counter) {
	t.Helper()
	s := opened(t, p)
	dropped := prometheus.NewCounter(prometheus.CounterOpts{Name: "dropped"})
	s.ack.queued = &dropCounter{log: zap.NewNop(), dropped: dropped}
	return s, dropped
}

func TestQueuedAnswersBeforeTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outcomes []func(messaging.MessageID, error)
		p := &scripted{outcome: func(_ int, done func(messaging.MessageID, error)) { outcomes = append(outcomes, done) }}
		s, dropped := queuedSink(t, p)
		settled, err := s.publish(t.Context(), three())
		assert.False(t, settled, "the publisher still reads the records")
		require.NoError(t, err)
		assert.Len(t, p.published, 3)
		outcomes[0](messaging.MessageID{}, nil)
		outcomes[1](messaging.MessageID{}, messaging.ErrUnacknowledged)
		outcomes[2](messaging.MessageID{}, messaging.ErrTooLarge)
		assert.InDelta(t, 2, testutil.ToFloat64(dropped), 0, "what is lost is counted")
	})
}

// TestQueuedTellsWhatTheQueueRefused: what is known to fail is never answered 204.
func TestQueuedTellsWhatTheQueueRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &scripted{outcome: func(n int, done func(messaging.MessageID, error)) {
			if n == 1 {
				done(messaging.MessageID{}, messaging.ErrQueueFull)
				return
			}
			done(messaging.MessageID{}, nil)
		}}
		s, dropped := queuedSink(t, p)
		_, err := s.publish(t.Context(), three())
		assert.Equal(t, http.StatusServiceUnavailable, statusOf(t, err))
		assert.InDelta(t, 0, testutil.ToFloat64(dropped), 0)
	})
}

// TestSinkIsAwayWhenAnAttemptIsLate: attempts have no deadline of their own, they
// outlive the requests.
func TestSinkIsAwayWhenAnAttemptIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []func(messaging.MessageID, error)
		p := &scripted{
			outcome: func(_ int, done func(messaging.MessageID, error)) { late = append(late, done) },
			flushed: make(chan struct{}),
		}
		s := opened(t, p)
		s.ack.late = time.Second
		ended := make(chan error, 1)
		go func() {
			_, err := s.publish(context.Background(), three())
			ended <- err
		}()
		<-time.After(2 * time.Second) // the bubble's clock
		synctest.Wait()
		require.Error(t, s.check(t.Context()))
		_, err := s.publish(t.Context(), three())
		assert.Equal(t, http.StatusServiceUnavailable, statusOf(t, err))
		for _, done := range late {
			done(messaging.MessageID{}, nil)
		}
		require.NoError(t, <-ended)
		close(p.flushed)
		synctest.Wait()
		require.NoError(t, s.check(t.Context()))
	})
}

// BenchmarkLedger is what recognising a body of 100 KiB costs a request.
func BenchmarkLedger(b *testing.B) {
	l := newLedger(DefaultConfig().Dedup)
	body := snappy.Encode(nil, make([]byte, 100<<10))
	body = append(body, make([]byte, 100<<10-len(body))...)
	b.SetBytes(int64(len(body)))
	for n := 0; b.Loop(); n++ {
		body[0], body[1], body[2] = byte(n), byte(n>>8), byte(n>>16)
		a, _ := l.claim(bodyKey{}, body)
		l.settle(a, contents{}, delivered{})
	}
}
