package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// fakeStore is a send topic.
type fakeStore struct {
	mu     sync.Mutex
	takes  time.Duration // that a group takes
	err    error         // of the next groups
	closes time.Duration // that closing takes
	open   int
	most   int // that were open at once
	opened int
	groups [][]int64
}

func (s *fakeStore) put(ctx context.Context, entries []pendingCopy) (done, left []pendingCopy, err error) {
	s.mu.Lock()
	takes, failure := s.takes, s.err
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, entries, ctx.Err()
	}
	if failure != nil {
		return nil, entries, failure
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var group []int64
	for _, e := range entries {
		group = append(group, e.position)
	}
	s.groups = append(s.groups, group)
	return entries, nil, nil
}

func (s *fakeStore) close(context.Context) {
	time.Sleep(s.closes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

func (s *fakeStore) set(takes time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes, s.err = takes, err
}

// newFakeSendQueue is a sendQueue into s that holds ten copies.
func newFakeSendQueue(t testing.TB, s *fakeStore, order model.Order) (*sendQueue, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	metrics := NewMetrics(prometheus.NewRegistry()).of("b")
	l := &sendQueue{
		maxBytes: 100, openSlots: make(chan struct{}, parallelOpens), retrySlots: make(chan struct{}, parallelOpens), health: health.New(zaptest.NewLogger(t)), metrics: metrics,
		ctx: ctx, end: cancel, working: new(sync.WaitGroup), wake: make(chan struct{}, 1),
	}
	l.open = func(context.Context) (topicWriter, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open++
		s.opened++
		s.most = max(s.most, s.open)
		return s, nil
	}
	return l, cancel
}

// added is a message with one copy, and whether it is finished.
func added(l *sendQueue, position int64, key string) (m *eventInFlight, finished func() bool) {
	m = &eventInFlight{metrics: l.metrics, published: time.Now()}
	m.left.Store(1)
	return m, func() bool { return m.left.Load() == 0 }
}

func (q *sendQueue) addTest(ctx context.Context, position int64, key string) func() bool {
	m, finished := added(q, position, key)
	if !q.add(ctx, pendingCopy{position: position, event: m, size: 10, record: &messaging.Record{Key: key}}) {
		return nil
	}
	return finished
}

// An event whose copies are not all stored is delivered again, also when one of them can never be.
func TestACopyThatIsRefusedHidesNoneThatIsMissing(t *testing.T) {
	refused := messaging.Reject(messaging.ErrTooLarge)
	for _, errs := range [][]error{{refused, errReleased, nil}, {errReleased, refused, nil}, {nil, refused, errReleased}} {
		m := &eventInFlight{metrics: NewMetrics(prometheus.NewRegistry()).of("b")}
		m.left.Store(int32(len(errs)))
		for _, err := range errs {
			m.done(err)
		}
		assert.ErrorIs(t, *m.failed.Load(), errReleased)
	}
}

func TestCopiesGatherWhileOthersAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{takes: time.Second}
		l, end := newFakeSendQueue(t, s, model.OrderTotal)
		var finished []func() bool
		for i := range int64(8) {
			finished = append(finished, l.addTest(t.Context(), i, "k"))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, finished[0]())
		assert.False(t, finished[1]())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, finished[7]())
		assert.Equal(t, [][]int64{{0}, {1, 2, 3, 4, 5, 6, 7}}, s.groups)

		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.Zero(t, s.open, "it is closed when idle")
		assert.False(t, l.running)
		l.addTest(t.Context(), 10, "k")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 2, s.opened)
		end()
		l.working.Wait()
		assert.Zero(t, s.open)
	})
}

func TestAFullQueueHasItsPartitionWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{takes: time.Hour}
		l, end := newFakeSendQueue(t, s, model.OrderNone)
		for i := range int64(10) {
			require.NotNil(t, l.addTest(t.Context(), i, ""))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.Nil(t, l.addTest(ctx, 10, ""), "the partition is lost meanwhile")
		var redelivered func() bool
		go func() { redelivered = l.addTest(t.Context(), 10, "") }()
		synctest.Wait()
		assert.Nil(t, redelivered)
		s.set(0, nil)
		time.Sleep(2 * time.Hour) // it stalled, and is tried again
		synctest.Wait()
		require.NotNil(t, redelivered)
		assert.True(t, redelivered())
		end()
		l.working.Wait()
	})
}

// longestPause is the longest time between two attempts, with its jitter.
const longestPause = backoff.Max * 6 / 5

func TestAQueueTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{err: errors.New("broken")}
		l, end := newFakeSendQueue(t, s, model.OrderTotal)
		finished := l.addTest(t.Context(), 1, "k")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.False(t, finished())
		assert.EqualError(t, l.health.Current(), "broken")
		assert.Greater(t, s.opened, 4)
		assert.Less(t, s.opened, 20)
		s.set(0, nil)
		time.Sleep(longestPause)
		synctest.Wait()
		assert.True(t, finished())
		assert.NoError(t, l.health.Current())

		s.set(0, errors.New("broken again"))
		rest := []func() bool{l.addTest(t.Context(), 2, "k"), l.addTest(t.Context(), 3, "k")}
		synctest.Wait()
		end()
		l.working.Wait()
		for _, f := range rest {
			assert.True(t, f(), "it is given up")
		}
		assert.Zero(t, s.open)
	})
}

func TestCopiesOfADeletedSubscriberAreNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{err: errors.New("the topic is gone")}
		l, end := newFakeSendQueue(t, s, model.OrderTotal)
		defer end()
		finished := l.addTest(t.Context(), 1, "k")
		synctest.Wait()
		l.forget()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.True(t, finished())
		assert.True(t, l.addTest(t.Context(), 2, "k")())
		assert.Empty(t, s.groups)
	})
}

// A partition that waits for a full sendQueue, and copies that are being stored, are not held up any
// more once the subscriber is deleted.
func TestNobodyWaitsForADeletedSubscriber(t *testing.T) {
	for _, order := range []model.Order{model.OrderNone, model.OrderTotal} {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeStore{takes: time.Hour}
			l, end := newFakeSendQueue(t, s, order)
			defer end()
			var finished []func() bool
			for i := range int64(10) {
				finished = append(finished, l.addTest(t.Context(), i, ""))
			}
			var waiting func() bool
			go func() { waiting = l.addTest(t.Context(), 10, "") }()
			synctest.Wait()
			require.Nil(t, waiting)
			l.forget()
			synctest.Wait()
			require.NotNil(t, waiting)
			for _, f := range append(finished, waiting) {
				assert.True(t, f())
			}
			assert.Zero(t, s.open)
		})
	}
}

// A send topic that accepts nothing, terminated or unavailable, is tried until it does, and no copy
// becomes anything else: the bus waits.
func TestASendTopicThatAcceptsNothingHoldsTheBus(t *testing.T) {
	for _, failure := range []error{messaging.ErrTopicTerminated, errors.New("over its quota")} {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeStore{err: failure}
			l, end := newFakeSendQueue(t, s, model.OrderTotal)
			var finished []func() bool
			for i := range int64(10) {
				finished = append(finished, l.addTest(t.Context(), i, "k"))
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			require.InDelta(t, 1, testutil.ToFloat64(l.metrics.unhealthy), 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Nil(t, l.addTest(ctx, 10, "k"), "the bus waits")
			for _, f := range finished {
				require.False(t, f())
			}
			s.set(0, nil)
			time.Sleep(longestPause)
			synctest.Wait()
			require.Zero(t, testutil.ToFloat64(l.metrics.unhealthy))
			for _, f := range finished {
				assert.True(t, f())
			}
			assert.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, slices.Concat(s.groups...))
			end()
			l.working.Wait()
		})
	}
}

func TestACopyThatComesWhileAnIdleQueueCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{closes: time.Second}
		l, end := newFakeSendQueue(t, s, model.OrderTotal)
		l.addTest(t.Context(), 1, "k")
		time.Sleep(idleAfter + 500*time.Millisecond)
		second := l.addTest(t.Context(), 2, "k")
		synctest.Wait()
		assert.False(t, second())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, second())
		assert.Equal(t, []int{1, 2}, []int{s.most, s.opened})
		end()
		l.working.Wait()
		assert.Zero(t, s.open)
	})
}

// Send topics that cannot be opened do not delay the opening of others again and again.
func TestBrokenSendTopicsDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, end := newFakeSendQueue(t, &fakeStore{}, model.OrderTotal)
		for range parallelOpens {
			broken, end := newFakeSendQueue(t, &fakeStore{}, model.OrderTotal)
			defer end()
			broken.openSlots, broken.retrySlots = good.openSlots, good.retrySlots
			broken.open = func(ctx context.Context) (topicWriter, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			broken.addTest(t.Context(), 1, "k")
		}
		time.Sleep(openTimeout + longestPause) // each of them tries again
		synctest.Wait()
		stored := good.addTest(t.Context(), 1, "k")
		synctest.Wait()
		assert.True(t, stored())
		end()
	})
}
