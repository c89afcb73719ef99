package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

var errDown = errors.New("down")

// failingHarness is a harness whose sinks fail the messages whose values are in failing.
type failingHarness struct {
	*harness
	failing map[string]bool
	reports *[]error
}

// eachKindOfFailure runs test with failures of the sink, and of the dead-letter sink.
func eachKindOfFailure(t *testing.T, test func(t *testing.T, in *failingHarness)) {
	t.Helper()
	t.Run("sending", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			in := &failingHarness{harness: newHarness(t, Config{}, nil), failing: map[string]bool{}}
			in.reports = &in.harness.reports
			in.sink.immediate = func(_ int, s sent) bool { s.done(in.outcome(s.m)); return true }
			test(t, in)
			assert.Empty(t, in.deadLetterReports)
		})
	})
	t.Run("dead letters", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			in := &failingHarness{failing: map[string]bool{}}
			in.harness = newHarness(t, Config{}, func(r *Route) {
				r.DeadLetter = func(_ context.Context, _ string, m *message.Message, _ error, done func(error)) { done(in.outcome(m)) }
			})
			in.reports = &in.deadLetterReports
			in.sink.immediate = func(_ int, s sent) bool { s.done(Refuse("too_large", errors.New("too large"))); return true }
			test(t, in)
			assert.Empty(t, in.harness.reports)
		})
	})
}

func (in *failingHarness) outcome(m *message.Message) (err error) {
	in.locked(func() {
		if in.failing[string(m.Value)] {
			err = errDown
		}
	})
	return err
}

// lastReport returns the last report, after ten seconds.
func (in *failingHarness) lastReport() (err error) {
	time.Sleep(10 * time.Second)
	synctest.Wait()
	in.locked(func() { err = (*in.reports)[len(*in.reports)-1] })
	return err
}

// TestFailureEndsWithItsPipeline: another process has the partition, for example. It ends also beside a
// pipeline that was always healthy.
func TestFailureEndsWithItsPipeline(t *testing.T) {
	eachKindOfFailure(t, func(t *testing.T, in *failingHarness) {
		t.Helper()
		in.failing["1"] = true
		failingPipeline, healthy := in.open(), in.open()
		defer failingPipeline.Abandon()
		defer healthy.Abandon()
		offer(t, failingPipeline, 1)
		offer(t, healthy, 2)
		require.ErrorIs(t, in.lastReport(), errDown)
		offer(t, healthy, 3)
		require.ErrorIs(t, in.lastReport(), errDown, "another pipeline's success does not end it")
		failingPipeline.Abandon()
		require.ErrorIs(t, (*in.reports)[len(*in.reports)-1], ErrClosed)
		offer(t, healthy, 4)
		require.NoError(t, healthy.Close(t.Context()))
		require.ErrorIs(t, in.lastReport(), ErrClosed, "no other pipeline reports")
	})
}

// TestFailureEndsWithTheLastPipeline: the first pipeline that recovers does not end the failure of the
// other.
func TestFailureEndsWithTheLastPipeline(t *testing.T) {
	eachKindOfFailure(t, func(t *testing.T, in *failingHarness) {
		t.Helper()
		in.failing["1"], in.failing["2"] = true, true
		first, second := in.open(), in.open()
		defer first.Abandon()
		defer second.Abandon()
		offer(t, first, 1)
		offer(t, second, 2)
		require.ErrorIs(t, in.lastReport(), errDown)
		in.locked(func() { in.failing["1"] = false })
		require.ErrorIs(t, in.lastReport(), errDown)
		require.NoError(t, first.Drain(t.Context()), "it has recovered")
		in.locked(func() { assert.NotContains(t, *in.reports, nil) })
		in.locked(func() { in.failing["2"] = false })
		require.NoError(t, in.lastReport())
		require.NoError(t, first.Close(t.Context()))
		require.NoError(t, second.Close(t.Context()))
		in.locked(func() { assert.NotContains(t, *in.reports, ErrClosed, "the failures had ended before") })
	})
}

// TestFailureEndsWithARefusal: the sink refuses the failed message later, and no message follows.
func TestFailureEndsWithARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, nil)
		b.sink.immediate = func(n int, s sent) bool {
			if n < 3 {
				s.done(errDown)
			} else {
				s.done(Refuse("too_large", errors.New("too large")))
			}
			return true
		}
		l := b.open()
		defer l.Abandon()
		offer(t, l, 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, []error{errDown, errDown, errDown, nil}, b.reports)
	})
}

// TestNoFailureAfterTheEnd: a dead letter's outcome comes after its pipeline was closed, and another's
// outcome is still pending.
func TestNoFailureAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := make(chan func(error), 2)
		b := newHarness(t, Config{}, func(r *Route) {
			r.DeadLetter = func(_ context.Context, _ string, _ *message.Message, _ error, done func(error)) { outcomes <- done }
		})
		l := b.open()
		offer(t, l, 1)
		offer(t, l, 2)
		b.sink.call(0).done(Refuse("too_large", errors.New("too large")))
		b.sink.call(1).done(Refuse("too_large", errors.New("too large")))
		synctest.Wait()
		l.Abandon()
		(<-outcomes)(errDown)
		assert.Empty(t, b.deadLetterReports)
		for len(outcomes) > 0 {
			(<-outcomes)(errDown)
		}
	})
}
