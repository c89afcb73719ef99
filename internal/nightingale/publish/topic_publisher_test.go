package publish

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// scripted is a publisher whose outcomes a test decides.
type scripted struct {
	outcome   func(n int, done func(messaging.MessageID, error)) // of the nth record
	published []string
	flushed   chan struct{} // Flush returns when it is closed
}

func (p *scripted) PublishAsync(_ context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	p.published = append(p.published, r.Key)
	p.outcome(len(p.published)-1, done)
}

func (p *scripted) Flush(ctx context.Context) error {
	select {
	case <-p.flushed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *scripted) Close(context.Context) error { return nil }

func (p *scripted) Partitions() int { return 1 }

// secondRefused returns a publisher that has no place for the second record.
func secondRefused() *scripted {
	return &scripted{outcome: func(n int, done func(messaging.MessageID, error)) {
		if n == 1 {
			done(messaging.MessageID{}, messaging.ErrQueueFull)
			return
		}
		done(messaging.MessageID{}, nil)
	}}
}

// opened returns a running topicPublisher.
func opened(t *testing.T, p *scripted) *topicPublisher {
	t.Helper()
	s := newTopicPublisher(zap.NewNop(), "topic", nil, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, func(context.Context) (Publisher, error) { return p, nil }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			assert.ErrorIs(t, err, context.Canceled)
		}
	})
	synctest.Wait()
	require.NoError(t, s.suspended.Err())
	return s
}

// payloads are those of three.
var payloads = [][]byte{[]byte("1"), []byte("2"), []byte("3")}

func three() []messaging.Record {
	return []messaging.Record{{Key: "a", Payload: payloads[0]}, {Key: "b", Payload: payloads[1]}, {Key: "c", Payload: payloads[2]}}
}

// tooLarge is the error of the nth record of three.
func tooLarge(n int) error {
	return &messaging.TooLargeError{Payload: payloads[n], Err: errors.New("more than the broker's bound")}
}

func TestTopicIsUnavailableUntilTheTopicIsOpen(t *testing.T) {
	s := newTopicPublisher(zap.NewNop(), "topic", func() error { return errors.New("connection refused") }, time.Minute)
	require.EqualError(t, s.suspended.Err(), "the topic is not open yet: connection refused")
	free, err := s.publish(t.Context(), three())
	assert.True(t, free)
	assert.ErrorContains(t, err, "Pulsar is unavailable: the topic is not open yet: connection refused")
	assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
	assert.NoError(t, s.close(t.Context()))
}

func TestTopicFailsWithATopicThatCanNeverOpen(t *testing.T) {
	s := newTopicPublisher(zap.NewNop(), "topic", nil, time.Minute)
	err := s.run(t.Context(), func(context.Context) (Publisher, error) { return nil, messaging.ErrTopicTerminated })
	assert.ErrorIs(t, err, messaging.ErrTopicTerminated)
}

// TestTopicPublishesNothingBehindARefusedRecord: the sender repeats the request, and
// a later sample of a series must not be on the topic before an earlier one.
func TestTopicPublishesNothingBehindARefusedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := secondRefused()
		free, err := opened(t, p).publish(t.Context(), three())
		assert.False(t, free, "what failed may still be read")
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
		assert.Equal(t, []string{"a", "b"}, p.published)
	})
}

// TestTopicAcknowledgesNothingThatItDidNotPublish: the time of a request can end before its first
// record is published, or between two records that the broker acknowledges at once.
func TestTopicAcknowledgesNothingThatItDidNotPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 { // both ends of the wait are ready, and select takes any
			for before := range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				p := &scripted{outcome: func(n int, done func(messaging.MessageID, error)) {
					if done(messaging.MessageID{}, nil); n+1 == before {
						cancel()
					}
				}}
				s := opened(t, p)
				if before == 0 {
					cancel()
				}
				_, err := s.publish(ctx, three())
				require.Error(t, err)
				assert.Len(t, p.published, before)
				cancel()
			}
		}
	})
}

// TestTopicPublishesBehindARecordTooLarge: repeating it would not help, so the
// others must be written now.
func TestTopicPublishesBehindARecordTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &scripted{outcome: func(n int, done func(messaging.MessageID, error)) {
			if n == 1 {
				done(messaging.MessageID{}, tooLarge(n))
				return
			}
			done(messaging.MessageID{}, nil)
		}}
		free, err := opened(t, p).publish(t.Context(), three())
		assert.False(t, free, "what failed may still be read")
		assert.Equal(t, TooLarge{1}, err)
		assert.Equal(t, []string{"a", "b", "c"}, p.published)
	})
}

// TestTopicPrefersTheErrorThatPasses: answered 400, the sender would never repeat
// what it should.
func TestTopicPrefersTheErrorThatPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &scripted{outcome: func(n int, done func(messaging.MessageID, error)) {
			done(messaging.MessageID{}, []error{tooLarge(0), errors.New("closed"), nil}[n])
		}}
		_, err := opened(t, p).publish(t.Context(), three())
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
	})
}

func TestTopicIsUnavailableUntilAllIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []func(messaging.MessageID, error)
		p := &scripted{
			outcome: func(_ int, done func(messaging.MessageID, error)) { late = append(late, done) },
			flushed: make(chan struct{}),
		}
		s := opened(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		free, err := s.publish(ctx, three())
		assert.False(t, free, "the publisher still reads the records")
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
		require.Error(t, s.suspended.Err())

		free, err = s.publish(t.Context(), three())
		assert.True(t, free)
		assert.Equal(t, http.StatusServiceUnavailable, writetest.StatusOf(t, err))
		assert.Len(t, p.published, 3, "a refused request does not fill the queue")

		for _, done := range late {
			done(messaging.MessageID{}, nil)
		}
		close(p.flushed)
		synctest.Wait()
		require.NoError(t, s.suspended.Err())
		p.outcome = func(_ int, done func(messaging.MessageID, error)) { done(messaging.MessageID{}, nil) }
		free, err = s.publish(t.Context(), three())
		assert.True(t, free)
		assert.NoError(t, err)
	})
}

func TestTopicIsNotUnavailableForASenderThatHungUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &scripted{outcome: func(int, func(messaging.MessageID, error)) {}}
		s := opened(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		free, err := s.publish(ctx, three())
		assert.False(t, free)
		assert.Equal(t, refusal.StatusClientClosed, writetest.StatusOf(t, err))
		assert.NoError(t, s.suspended.Err())
	})
}
