package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// sent is one call of Send.
type sent struct {
	to   string
	m    *message.Message
	done func(error)
}

func (s sent) value() string { return string(s.m.Value) }

// manualSink is a sink whose outcomes the test gives.
type manualSink struct {
	mu        sync.Mutex
	calls     []sent
	immediate func(n int, s sent) bool // gives call n its outcome at once, or returns false
}

func (s *manualSink) Send(_ context.Context, to string, m *message.Message, done func(error)) {
	s.mu.Lock()
	c := sent{to, m, done}
	n := len(s.calls)
	s.calls = append(s.calls, c)
	now := s.immediate
	s.mu.Unlock()
	if now != nil {
		now(n, c)
	}
}

func (s *manualSink) values() (vs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		vs = append(vs, c.value())
	}
	return vs
}

func (s *manualSink) call(n int) sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[n]
}

func passAll(context.Context, *message.Message) (string, bool, error) { return "to", true, nil }

func prepareWith(f func(*message.Message) (string, bool, error)) func() (Prepare, func()) {
	return func() (Prepare, func()) {
		return func(_ context.Context, m *message.Message) (string, bool, error) { return f(m) }, nil
	}
}

// harness is a set of pipelines, with what the pipelines reported, committed and stored.
type harness struct {
	*Set
	sink              *manualSink
	mu                sync.Mutex
	commits           []int64
	reports           []error
	deadLetterReports []error // calls of ReportDeadLetters
	stopped           []error
	deadLetters       []string
	deadLetterErr     func(n int) error
}

func newHarness(t *testing.T, cfg Config, change func(*Route)) *harness {
	t.Helper()
	b := &harness{sink: &manualSink{}}
	if cfg.Messages == 0 {
		cfg.Messages = 100
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = 1 << 20
	}
	cfg.CommitEvery, cfg.MinBackoff, cfg.MaxBackoff = 100*time.Millisecond, 100*time.Millisecond, time.Second
	r := Route{
		Sink: b.sink, Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry()).Route("test"),
		Prepare:           func() (Prepare, func()) { return passAll, nil },
		Stop:              func(err error) { b.locked(func() { b.stopped = append(b.stopped, err) }) },
		Report:            func(err error) { b.locked(func() { b.reports = append(b.reports, err) }) },
		ReportDeadLetters: func(err error) { b.locked(func() { b.deadLetterReports = append(b.deadLetterReports, err) }) },
		DeadLetter: func(_ context.Context, _ string, m *message.Message, reason error, done func(error)) {
			var err error
			b.locked(func() {
				b.deadLetters = append(b.deadLetters, string(m.Value)+": "+reason.Error())
				if b.deadLetterErr != nil {
					err = b.deadLetterErr(len(b.deadLetters))
				}
			})
			done(err)
		},
	}
	if change != nil {
		change(&r)
	}
	b.Set = NewSet(cfg, r)
	return b
}

func (b *harness) locked(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *harness) committed() []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]int64(nil), b.commits...)
}

func (b *harness) open() *Pipeline {
	return b.Open("pipeline", func(p int64) error {
		b.locked(func() { b.commits = append(b.commits, p) })
		return nil
	})
}

func offer(t *testing.T, l *Pipeline, n int) {
	t.Helper()
	require.NoError(t, l.Offer(t.Context(), numbered(n), int64(n)))
}

func numbered(n int) *message.Message {
	return &message.Message{Value: []byte(strconv.Itoa(n)), From: message.From{Received: time.Now()}}
}

// TestCommitsFollowTheWatermark: a commit never passes a message that is not stored.
func TestCommitsFollowTheWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		l := b.open()
		defer l.Abandon()
		for _, n := range []int{3, 4, 7, 9} { // positions have gaps
			offer(t, l, n)
		}
		tick := func() { time.Sleep(150 * time.Millisecond); synctest.Wait() }
		b.sink.call(1).done(nil)
		b.sink.call(3).done(nil)
		tick()
		assert.Empty(t, b.committed(), "3 is not stored")
		b.sink.call(0).done(nil)
		tick()
		assert.Equal(t, []int64{4}, b.committed())
		b.sink.call(2).done(nil)
		tick()
		tick()
		assert.Equal(t, []int64{4, 9}, b.committed(), "each once")
	})
}

// TestCommitEach: the pipeline commits after that many messages, before the interval ends.
func TestCommitEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		b.sink.immediate = func(_ int, s sent) bool { s.done(nil); return true }
		l := b.open()
		l.CommitEach(5)
		defer l.Abandon()
		began := time.Now()
		for n := range 10 {
			offer(t, l, n)
			synctest.Wait()
		}
		assert.Equal(t, []int64{4, 9}, b.committed())
		assert.Zero(t, time.Since(began))
	})
}

// TestResendInOrder: a failed message is resent with all messages behind it, and before new ones.
func TestResendInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		l := b.open()
		defer l.Abandon()
		for n := range 4 {
			offer(t, l, n)
		}
		offered := make(chan struct{})
		b.sink.call(0).done(nil)
		b.sink.call(1).done(errors.New("down"))
		go func() {
			assert.NoError(t, l.Offer(t.Context(), numbered(4), 4))
			close(offered)
		}()
		b.sink.call(3).done(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Len(t, b.sink.values(), 4, "2 has no outcome yet: a message sent now could be stored before it")
		b.sink.call(2).done(errors.New("down"))
		time.Sleep(time.Minute)
		<-offered
		assert.Equal(t, []string{"0", "1", "2", "3", "1", "2", "3", "4"}, b.sink.values())
		for i := 4; i < 8; i++ {
			b.sink.call(i).done(nil)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, int64(4), b.committed()[len(b.committed())-1])
		require.Len(t, b.reports, 2)
		assert.EqualError(t, b.reports[0], "down")
		assert.NoError(t, b.reports[1], "recovered")
	})
}

// TestFailureDuringResend: the sink fails for 30 seconds, and nothing is lost.
func TestFailureDuringResend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		back := time.Now().Add(30 * time.Second)
		var stored []string
		b.sink.immediate = func(_ int, s sent) bool {
			if time.Now().Before(back) {
				s.done(errors.New("down"))
				return true
			}
			b.locked(func() { stored = append(stored, s.value()) })
			s.done(nil)
			return true
		}
		l := b.open()
		for n := range 20 {
			offer(t, l, n)
		}
		require.NoError(t, l.Close(t.Context()))
		var want []string
		for n := range 20 {
			want = append(want, strconv.Itoa(n))
		}
		assert.Equal(t, want, stored)
		assert.Equal(t, []int64{19}, b.committed()[len(b.committed())-1:])
		assert.Less(t, len(b.sink.values()), 20+100, "with growing pauses")
	})
}

// TestBounds: bounds in messages and in bytes are divided among the pipelines, and outcomes free room.
func TestBounds(t *testing.T) {
	for name, cfg := range map[string]Config{"messages": {Messages: 6}, "bytes": {Bytes: 6 * numbered(0).Size()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, cfg, nil)
				one, two := b.open(), b.open()
				defer one.Abandon()
				for n := range 3 {
					offer(t, one, n)
				}
				full, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, one.Offer(full, numbered(3), 3), context.DeadlineExceeded)
				offer(t, two, 0)
				assert.Equal(t, 4, b.State().InFlight, "a message that was not taken does not count")
				assert.EqualValues(t, 4, b.pool.held.messages)
				two.Abandon()
				synctest.Wait()
				for n := range 3 {
					offer(t, one, 3+n) // the only pipeline has all of the bounds
				}
				go func() {
					time.Sleep(time.Second)
					b.sink.call(0).done(nil)
				}()
				began := time.Now()
				offer(t, one, 6)
				assert.Equal(t, time.Second, time.Since(began))
			})
		})
	}
}

func TestMessageLargerThanTheBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{Bytes: 10}, nil)
		l := b.open()
		defer l.Abandon()
		offer(t, l, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, l.Offer(ctx, numbered(1), 1), "only an empty pipeline may take it")
		b.sink.call(0).done(nil)
		offer(t, l, 1)
	})
}

// TestDeadLetters: a refused message does not hold up others, and the watermark passes it only when
// its dead letter is stored.
func TestDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		b.deadLetterErr = func(n int) error {
			if n < 3 {
				return errors.New("down")
			}
			return nil
		}
		l := b.open()
		for n := range 3 {
			offer(t, l, n)
		}
		b.sink.call(2).done(nil)
		b.sink.call(1).done(Refuse("too_large", errors.New("too large")))
		b.sink.call(0).done(nil)
		synctest.Wait()
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, []string{"1: too large", "1: too large", "1: too large"}, b.deadLetters)
		assert.Equal(t, []int64{2}, b.committed()[len(b.committed())-1:])
		assert.Len(t, b.sink.values(), 3, "the others are not sent again")
		assert.EqualValues(t, 1, b.State().Refused)
		assert.InDelta(t, 1, testutil.ToFloat64(b.route.Metrics.refused.WithLabelValues("too_large")), 0, "counted once, however often storing it fails")
	})
}

// TestDeadLettersRecoverTogether: when the dead-letter sink recovers, all waiting dead letters are
// stored after one backoff, not one after the other.
func TestDeadLettersRecoverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{Messages: 1000}, nil)
		const letters = 200
		back := time.Now().Add(10 * time.Second)
		b.deadLetterErr = func(int) error {
			if time.Now().Before(back) {
				return errors.New("down")
			}
			return nil
		}
		l := b.open()
		for n := range letters {
			offer(t, l, n)
		}
		for n := range letters {
			b.sink.call(n).done(Refuse("too_large", errors.New("too large")))
		}
		require.NoError(t, l.Close(t.Context()))
		assert.WithinRange(t, time.Now(), back, back.Add(b.cfg.MaxBackoff*2))
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(b.deadLetters))), letters)
		assert.Less(t, len(b.deadLetters), 20*letters, "with growing pauses")
		assert.EqualValues(t, letters, b.State().Refused)
	})
}

// TestBlockedDeadLetterSink: while the dead-letter sink gives no outcome, the pipeline commits up to
// the dead letter and resends failed messages.
func TestBlockedDeadLetterSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		b := newHarness(t, Config{}, func(r *Route) {
			r.DeadLetter = func(_ context.Context, _ string, _ *message.Message, _ error, done func(error)) {
				<-back
				done(nil)
			}
		})
		l := b.open()
		for n := range 4 {
			offer(t, l, n)
		}
		b.sink.call(2).done(Refuse("too_large", errors.New("too large")))
		synctest.Wait()
		b.sink.call(0).done(nil)
		b.sink.call(3).done(nil)
		b.sink.call(1).done(errors.New("down"))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"0", "1", "2", "3", "1", "3"}, b.sink.values())
		b.sink.call(4).done(nil)
		b.sink.call(5).done(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, int64(1), b.committed()[len(b.committed())-1])
		close(back)
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, int64(3), b.committed()[len(b.committed())-1])
	})
}

func TestRefusalStopsTheRouteWithoutDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, func(r *Route) {
			r.DeadLetter = nil
			r.Prepare = prepareWith(func(m *message.Message) (string, bool, error) {
				if string(m.Value) == "1" {
					return "", false, Refuse("expression", errors.New("no such field"))
				}
				return "to", true, nil
			})
		})
		l := b.open()
		offer(t, l, 0)
		b.sink.call(0).done(nil)
		offer(t, l, 1)
		synctest.Wait()
		require.Len(t, b.stopped, 1)
		assert.ErrorContains(t, b.stopped[0], "pipeline at 1")
		assert.InDelta(t, 1, testutil.ToFloat64(b.route.Metrics.refused.WithLabelValues("expression")), 0)
		assert.ErrorIs(t, l.Close(t.Context()), ErrClosed)
		assert.Equal(t, []int64{0}, b.committed())
	})
}

func TestFilteredAndLooped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, func(r *Route) {
			r.Prepare = prepareWith(func(m *message.Message) (string, bool, error) {
				switch string(m.Value) {
				case "0":
					return "", false, nil
				case "1":
					return "", false, fmt.Errorf("dropped: %w", ErrLoop)
				}
				return "to", true, nil
			})
		})
		l := b.open()
		for n := range 2 {
			offer(t, l, n)
		}
		require.NoError(t, l.Close(t.Context()))
		assert.Empty(t, b.sink.values())
		assert.Equal(t, []int64{1}, b.committed())
		assert.EqualValues(t, 2, b.State().Filtered)
	})
}

// TestNoCommitAfterTheEnd: another process may have the partition.
func TestNoCommitAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		abandoned, closed := b.open(), b.open()
		offer(t, abandoned, 0)
		offer(t, closed, 1)
		offer(t, closed, 2)
		abandoned.Abandon()
		b.sink.call(0).done(nil)
		b.sink.call(1).done(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, closed.Close(ctx), context.DeadlineExceeded)
		b.sink.call(2).done(nil)
		time.Sleep(time.Minute)
		assert.Equal(t, []int64{1}, b.committed())
		assert.ErrorIs(t, closed.Offer(t.Context(), numbered(3), 3), ErrClosed)
		assert.Zero(t, b.State().Pipelines)
	})
}

// TestCanceledSendIsResent: the source's context ends while the sink has no room. The pipeline has
// taken the message.
func TestCanceledSendIsResent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		b.sink.immediate = func(n int, s sent) bool {
			if n == 0 {
				s.done(context.Canceled)
			} else {
				s.done(nil)
			}
			return true
		}
		l := b.open()
		offer(t, l, 0)
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, []string{"0", "0"}, b.sink.values())
		assert.Equal(t, []int64{0}, b.committed())
		for _, err := range b.reports {
			assert.NoError(t, err, "a canceled send is no failure")
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		l := b.open()
		defer l.Abandon()
		b.Pause()
		b.Pause()
		go func() {
			time.Sleep(time.Second)
			b.Resume()
		}()
		began := time.Now()
		offer(t, l, 0)
		assert.Equal(t, time.Second, time.Since(began))
		b.Resume()
	})
}

// TestManyPipelines runs pipelines with outcomes from other goroutines, out of order and with
// failures, and checks what the destination stored.
func TestManyPipelines(t *testing.T) {
	const pipelines, each = 8, 3000
	outcomes := make(chan func(), 1000)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for f := range outcomes {
				f()
			}
		})
	}
	b := newHarness(t, Config{Messages: 400}, nil)
	var mu sync.Mutex
	stored := map[string][]int{}
	failures := 0
	b.sink.immediate = func(n int, s sent) bool {
		mu.Lock()
		fail := n%997 == 0 && failures < 200
		if fail {
			failures++
		} else {
			v, err := strconv.Atoi(s.value())
			assert.NoError(t, err)
			stored[string(s.m.Key)] = append(stored[string(s.m.Key)], v)
		}
		mu.Unlock()
		outcomes <- func() {
			if fail {
				s.done(errors.New("down"))
			} else {
				s.done(nil)
			}
		}
		return true
	}
	b.cfg.MinBackoff = time.Millisecond
	var wg sync.WaitGroup
	for i := range pipelines {
		wg.Go(func() {
			last := int64(-1)
			l := b.Open(strconv.Itoa(i), func(p int64) error {
				assert.Greater(t, p, last)
				last = p
				return nil
			})
			l.CommitEach(100)
			for n := range each {
				m := numbered(n)
				m.Key = strconv.AppendInt(nil, int64(i), 10)
				assert.NoError(t, l.Offer(t.Context(), m, int64(n)))
			}
			assert.NoError(t, l.Close(t.Context()))
			assert.EqualValues(t, each-1, last)
		})
	}
	wg.Wait()
	close(outcomes)
	workers.Wait()
	for i := range pipelines {
		next := 0
		for _, v := range stored[strconv.Itoa(i)] {
			if v == next { // messages stored behind a failure come again after the failed one
				next++
			}
		}
		assert.Equal(t, each, next)
	}
	assert.Positive(t, failures)
}

func BenchmarkPipeline(b *testing.B) {
	now := time.Now()
	s := NewSet(Config{Messages: 10_000, Bytes: 64 << 20, CommitEvery: 100 * time.Millisecond}, Route{
		Sink: sinkFunc(func(done func(error)) { done(nil) }), Log: zap.NewNop(),
		Metrics: NewMetrics(prometheus.NewRegistry()).Route("bench"),
		Prepare: func() (Prepare, func()) { return passAll, nil },
	})
	l := s.Open("pipeline", func(int64) error { return nil })
	defer l.Abandon()
	m := &message.Message{Value: make([]byte, 512), From: message.From{Received: now}}
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		if l.Offer(b.Context(), m, n) != nil {
			b.Fatal("offer")
		}
	}
}

type sinkFunc func(done func(error))

func (f sinkFunc) Send(_ context.Context, _ string, _ *message.Message, done func(error)) { f(done) }

// TestNoSendAfterTheEnd: a resend of a closed pipeline does not come after what the next pipeline
// of the partition has sent.
func TestNoSendAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(*Pipeline){
		"closed": func(l *Pipeline) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = l.Close(ctx)
		},
		"abandoned": (*Pipeline).Abandon,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var stored []string
				calls := 0
				b := newHarness(t, Config{}, func(r *Route) {
					r.Sink = sinkOf(func(m *message.Message, done func(error)) {
						mu.Lock()
						calls++
						n := calls
						mu.Unlock()
						switch n {
						case 1:
							done(errors.New("down"))
							return
						case 2:
							time.Sleep(2 * time.Second) // the sink is busy
						}
						mu.Lock()
						stored = append(stored, string(m.Value))
						mu.Unlock()
						done(nil)
					})
				})
				l := b.open()
				offer(t, l, 1)
				time.Sleep(500 * time.Millisecond) // 1 is being resent
				end(l)
				next := b.open()
				offer(t, next, 1)
				offer(t, next, 2)
				require.NoError(t, next.Close(t.Context()))
				time.Sleep(10 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, "2", stored[len(stored)-1], "%v", stored)
			})
		})
	}
}
