package lane

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

var errAway = errors.New("away")

// infirmary is a bench whose messages fail while their number is among the ill.
type infirmary struct {
	*bench
	ill     map[string]bool
	reports *[]error
}

// eachIllness runs test for what lanes have of the sink, and of the sink of dead letters.
func eachIllness(t *testing.T, test func(t *testing.T, in *infirmary)) {
	t.Helper()
	t.Run("sending", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			in := &infirmary{bench: newBench(t, Config{}, nil), ill: map[string]bool{}}
			in.reports = &in.bench.reports
			in.sink.now = func(_ int, s sent) bool { s.done(in.outcome(s.m)); return true }
			test(t, in)
			assert.Empty(t, in.letters)
		})
	})
	t.Run("dead letters", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			in := &infirmary{ill: map[string]bool{}}
			in.bench = newBench(t, Config{}, func(r *Route) {
				r.Dead = func(_ context.Context, _ string, m *message.Message, _ error, done func(error)) { done(in.outcome(m)) }
			})
			in.reports = &in.letters
			in.sink.now = func(_ int, s sent) bool { s.done(Refuse("too_large", errors.New("too large"))); return true }
			test(t, in)
			assert.Empty(t, in.bench.reports)
		})
	})
}

func (in *infirmary) outcome(m *message.Message) (err error) {
	in.note(func() {
		if in.ill[string(m.Value)] {
			err = errAway
		}
	})
	return err
}

// last is what was reported last, after a while.
func (in *infirmary) last() (err error) {
	time.Sleep(10 * time.Second)
	synctest.Wait()
	in.note(func() { err = (*in.reports)[len(*in.reports)-1] })
	return err
}

// TestTroubleEndsWithItsLane, as when another process has the partition: also beside a lane that was always well.
func TestTroubleEndsWithItsLane(t *testing.T) {
	eachIllness(t, func(t *testing.T, in *infirmary) {
		t.Helper()
		in.ill["1"] = true
		ill, well := in.open(), in.open()
		defer ill.Abandon()
		defer well.Abandon()
		offer(t, ill, 1)
		offer(t, well, 2)
		require.ErrorIs(t, in.last(), errAway)
		offer(t, well, 3)
		require.ErrorIs(t, in.last(), errAway, "the other's success is not its")
		ill.Abandon()
		require.ErrorIs(t, (*in.reports)[len(*in.reports)-1], ErrClosed)
		offer(t, well, 4)
		require.NoError(t, well.Close(t.Context()))
		require.ErrorIs(t, in.last(), ErrClosed, "there is no other")
	})
}

// TestTroubleEndsWithTheLastThatHasIt: the first lane that recovers does not speak for the other.
func TestTroubleEndsWithTheLastThatHasIt(t *testing.T) {
	eachIllness(t, func(t *testing.T, in *infirmary) {
		t.Helper()
		in.ill["1"], in.ill["2"] = true, true
		first, second := in.open(), in.open()
		defer first.Abandon()
		defer second.Abandon()
		offer(t, first, 1)
		offer(t, second, 2)
		require.ErrorIs(t, in.last(), errAway)
		in.note(func() { in.ill["1"] = false })
		require.ErrorIs(t, in.last(), errAway)
		require.NoError(t, first.Drain(t.Context()), "it has recovered")
		in.note(func() { assert.NotContains(t, *in.reports, nil) })
		in.note(func() { in.ill["2"] = false })
		require.NoError(t, in.last())
		require.NoError(t, first.Close(t.Context()))
		require.NoError(t, second.Close(t.Context()))
		in.note(func() { assert.NotContains(t, *in.reports, ErrClosed, "it was over") })
	})
}

// TestTroubleEndsWithARefusal: what failed is refused later, and nothing comes behind it.
func TestTroubleEndsWithARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{}, nil)
		b.sink.now = func(n int, s sent) bool {
			if n < 3 {
				s.done(errAway)
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
		assert.Equal(t, []error{errAway, errAway, errAway, nil}, b.reports)
	})
}

// TestNoTroubleBehindTheEnd: a dead letter's outcome comes when its lane has ended, and another one's is still to come.
func TestNoTroubleBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := make(chan func(error), 2)
		b := newBench(t, Config{}, func(r *Route) {
			r.Dead = func(_ context.Context, _ string, _ *message.Message, _ error, done func(error)) { outcomes <- done }
		})
		l := b.open()
		offer(t, l, 1)
		offer(t, l, 2)
		b.sink.call(0).done(Refuse("too_large", errors.New("too large")))
		b.sink.call(1).done(Refuse("too_large", errors.New("too large")))
		synctest.Wait()
		l.Abandon()
		(<-outcomes)(errAway)
		assert.Empty(t, b.letters)
		for len(outcomes) > 0 {
			(<-outcomes)(errAway)
		}
	})
}
