package publish

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// queuedSink is a running topicPublisher under ack: queued.
func queuedSink(t *testing.T, p *scripted) (*topicPublisher, prometheus.Counter) {
	t.Helper()
	s := opened(t, p)
	dropped := prometheus.NewCounter(prometheus.CounterOpts{Name: "dropped"})
	s.dropped = func(error) { dropped.Inc() }
	return s, dropped
}

func TestQueuedAnswersBeforeTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outcomes []func(messaging.MessageID, error)
		p := &scripted{outcome: func(_ int, done func(messaging.MessageID, error)) { outcomes = append(outcomes, done) }}
		s, dropped := queuedSink(t, p)
		free, err := s.publish(t.Context(), three())
		assert.False(t, free, "the publisher still reads the records")
		require.NoError(t, err)
		assert.Len(t, p.published, 3)
		outcomes[0](messaging.MessageID{}, nil)
		outcomes[1](messaging.MessageID{}, messaging.ErrUnacknowledged)
		outcomes[2](messaging.MessageID{}, tooLarge(2))
		assert.InDelta(t, 2, testutil.ToFloat64(dropped), 0, "what is lost is counted")
	})
}

// TestQueuedTellsWhatTheQueueRefused: what is known to fail is never answered 204.
func TestQueuedTellsWhatTheQueueRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dropped := queuedSink(t, secondRefused())
		_, err := s.publish(t.Context(), three())
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
		assert.InDelta(t, 0, testutil.ToFloat64(dropped), 0)
	})
}

// TestTopicIsUnavailableWhenAnAttemptIsLate: attempts have no deadline of their own, they
// outlive the requests.
func TestTopicIsUnavailableWhenAnAttemptIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []func(messaging.MessageID, error)
		p := &scripted{
			outcome: func(_ int, done func(messaging.MessageID, error)) { late = append(late, done) },
			flushed: make(chan struct{}),
		}
		s := opened(t, p)
		s.late = time.Second
		ended := make(chan error, 1)
		go func() {
			_, err := s.publish(context.Background(), three())
			ended <- err
		}()
		<-time.After(2 * time.Second) // the bubble's clock
		synctest.Wait()
		require.Error(t, s.suspended.Err())
		_, err := s.publish(t.Context(), three())
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
		for _, done := range late {
			done(messaging.MessageID{}, nil)
		}
		require.NoError(t, <-ended)
		close(p.flushed)
		synctest.Wait()
		require.NoError(t, s.suspended.Err())
	})
}
