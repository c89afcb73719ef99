package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// TestResendOnlyWhatTheSinkHadStored: a resend skips messages that were filtered or dropped as
// loops, and dead letters.
func TestResendOnlyWhatTheSinkHadStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{}, func(r *Route) {
			r.Prepare = prepareWith(func(m *message.Message) (string, bool, error) {
				switch string(m.Value) {
				case "1":
					return "", false, nil
				case "2":
					return "", false, ErrLoop
				case "3":
					return "", false, Refuse("template", errors.New("no value"))
				}
				return "to", true, nil
			})
		})
		l := b.open()
		for n := range 6 {
			offer(t, l, n)
		}
		b.sink.call(1).done(nil)                                          // 4
		b.sink.call(2).done(Refuse("too_large", errors.New("too large"))) // 5
		synctest.Wait()
		b.sink.immediate = func(_ int, s sent) bool { s.done(nil); return true }
		b.sink.call(0).done(errors.New("down"))
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, []string{"0", "4", "5", "0", "4"}, b.sink.values())
		for n := range b.sink.calls {
			assert.Equal(t, "to", b.sink.call(n).to)
		}
		assert.Equal(t, []string{"3: no value", "5: too large"}, b.deadLetters)
		assert.Equal(t, []int64{5}, b.committed()[len(b.committed())-1:])
	})
}

// fate is what happens to a message in TestRandomFailures.
type fate int

const (
	passes fate = iota
	isFiltered
	isLooped
	isRefusedByRoute // by Prepare
	isRefusedBySink  // by Send
	fates
)

// simulation is a source, a sink and a dead-letter sink in memory that fail at random, and checks
// what must be true of them. Every pipeline that it opens begins behind the last commit. Fields that mu
// guards are read with mu held, also between pipelines: synctest.Wait does not order reads after the
// writes of a goroutine that has ended.
type simulation struct {
	t            *testing.T
	fates        []fate
	destinations []string

	mu                   sync.Mutex
	rand                 *rand.Rand
	sinkDownUntil        time.Time              // until then the sink fails
	deadLettersDownUntil time.Time              // until then the dead-letter sink fails
	stored               map[string]storedOrder // by destination
	deadLetters          storedOrder
	committed            int64
	commitsSucceed       bool        // commits no longer fail
	pipelineNumber       int         // counts pipelines
	deadLetterPipeline   map[int]int // message -> number of the pipeline that stored its dead letter
}

// storedOrder lists messages in the order in which they were stored.
type storedOrder []int

func (w *simulation) happens(percent int) bool { return w.rand.IntN(100) < percent }

// randomPosition returns a position before the source's end.
func (w *simulation) randomPosition() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.IntN(len(w.fates))
}

// prepare is the route's Prepare: its result is the message's fate.
func (w *simulation) prepare(_ context.Context, m *message.Message) (string, bool, error) {
	n, err := strconv.Atoi(string(m.Value))
	assert.NoError(w.t, err)
	switch w.fates[n] {
	case isFiltered:
		return "", false, nil
	case isLooped:
		return "", false, ErrLoop
	case isRefusedByRoute:
		return "", false, Refuse("template", errors.New("no value"))
	default:
		return w.destinations[n], true, nil
	}
}

// outcome calls done with err, at once or later.
func (w *simulation) outcome(done func(error), err error) {
	if w.happens(30) {
		done(err)
		return
	}
	delay := time.Duration(w.rand.IntN(20)) * time.Millisecond
	go func() {
		time.Sleep(delay)
		done(err)
	}()
}

// Send implements Sink.
func (w *simulation) Send(_ context.Context, to string, m *message.Message, done func(error)) {
	n, err := strconv.Atoi(string(m.Value))
	assert.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if assert.Contains(w.t, []fate{passes, isRefusedBySink}, w.fates[n], "%d must never reach the sink", n) {
		assert.Equal(w.t, w.destinations[n], to)
	}
	if life, there := w.deadLetterPipeline[n]; there {
		assert.NotEqual(w.t, w.pipelineNumber, life, "%d is a dead letter already", n)
	}
	failed := errors.New("down")
	switch {
	case time.Now().Before(w.sinkDownUntil):
		w.outcome(done, failed)
	case w.happens(1):
		w.sinkDownUntil = time.Now().Add(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
		w.outcome(done, failed)
	case w.fates[n] == isRefusedBySink:
		w.outcome(done, Refuse("too_large", errors.New("too large")))
	default:
		w.stored[to] = append(w.stored[to], n)
		if w.happens(2) {
			w.outcome(done, errors.New("stored, but the acknowledgement was lost"))
		} else {
			w.outcome(done, nil)
		}
	}
}

// storeDeadLetter is the route's DeadLetter.
func (w *simulation) storeDeadLetter(_ context.Context, _ string, m *message.Message, _ error, done func(error)) {
	n, err := strconv.Atoi(string(m.Value))
	assert.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Contains(w.t, []fate{isRefusedByRoute, isRefusedBySink}, w.fates[n], "%d was not refused", n)
	if time.Now().Before(w.deadLettersDownUntil) || w.happens(10) {
		if w.happens(10) {
			w.deadLettersDownUntil = time.Now().Add(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
		}
		w.outcome(done, errors.New("down"))
		return
	}
	if life, there := w.deadLetterPipeline[n]; there {
		assert.NotEqual(w.t, w.pipelineNumber, life, "%d is stored once by one pipeline", n)
	}
	w.deadLetters = append(w.deadLetters, n)
	w.deadLetterPipeline[n] = w.pipelineNumber
	w.outcome(done, nil)
}

// commit is the source's: every message up to position must be complete.
func (w *simulation) commit(position int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Greater(w.t, position, w.committed)
	for n := w.committed + 1; n <= position; n++ {
		switch w.fates[n] {
		case passes:
			assert.Contains(w.t, w.stored[w.destinations[n]], int(n), "committed and not stored")
		case isRefusedByRoute, isRefusedBySink:
			assert.Contains(w.t, w.deadLetters, int(n), "committed and no dead letter")
		}
	}
	if !w.commitsSucceed && w.happens(10) {
		return errors.New("down")
	}
	w.committed = position
	return nil
}

// runPipeline opens a pipeline, offers it the messages behind the last commit up to end, and closes or
// abandons it.
func (w *simulation) runPipeline(s *Set, end int) {
	w.mu.Lock()
	w.pipelineNumber++
	from := int(w.committed) + 1
	w.commitsSucceed = end == len(w.fates)
	abandon := w.happens(50)
	w.mu.Unlock()
	l := s.Open("pipeline", w.commit)
	l.CommitEach(16)
	for n := from; n < end; n++ {
		require.NoError(w.t, l.Offer(w.t.Context(), numbered(n), int64(n)))
	}
	switch {
	case end == len(w.fates):
		require.NoError(w.t, l.Close(w.t.Context()))
	case abandon:
		l.Abandon()
	default:
		ctx, cancel := context.WithTimeout(w.t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			require.ErrorIs(w.t, err, context.DeadlineExceeded)
		}
	}
	synctest.Wait() // one process ends before the next begins
	time.Sleep(time.Second)
}

// TestRandomFailures: the sink and the dead-letter sink fail at random and recover, and pipelines end
// at random, with filters, loops, refusals and two destinations. AVIARY_PIPELINE_SEED repeats a run.
// Where AVIARY_PIGEONHOLE_SECONDS asks for long forms, the seeds are new ones.
func TestRandomFailures(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if os.Getenv("AVIARY_PIGEONHOLE_SECONDS") != "" {
		for i := range seeds {
			seeds[i] = rand.Uint64()
		}
	}
	if text := os.Getenv("AVIARY_PIPELINE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { failAtRandom(t, seed) })
		})
	}
}

func failAtRandom(t *testing.T, seed uint64) {
	t.Helper()
	const messages = 2000
	w := &simulation{t: t, rand: rand.New(rand.NewPCG(seed, 0)), stored: map[string]storedOrder{}, deadLetterPipeline: map[int]int{}, committed: -1}
	for range messages {
		f := passes
		if w.happens(40) {
			f = fate(w.rand.IntN(int(fates)))
		}
		w.fates = append(w.fates, f)
		w.destinations = append(w.destinations, []string{"one", "other"}[w.rand.IntN(2)])
	}
	b := newHarness(t, Config{Messages: 1 + w.rand.IntN(200)}, func(r *Route) {
		r.Sink, r.DeadLetter = w, w.storeDeadLetter
		r.Prepare = func() (Prepare, func()) { return w.prepare, nil }
	})
	for range 5 {
		w.runPipeline(b.Set, w.randomPosition())
	}
	w.runPipeline(b.Set, messages)
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.EqualValues(t, messages-1, w.committed)
	for to, stored := range w.stored {
		var want storedOrder
		for n := range messages {
			if w.fates[n] == passes && w.destinations[n] == to {
				want = append(want, n)
			}
		}
		assert.Equal(t, want, lastStored(stored), "each is stored, and everything behind it after it")
	}
	var want storedOrder
	for n := range messages {
		if w.fates[n] == isRefusedByRoute || w.fates[n] == isRefusedBySink {
			want = append(want, n)
		}
	}
	dead := slices.Clone(w.deadLetters)
	slices.Sort(dead)
	assert.Equal(t, want, slices.Compact(dead))
	assert.Positive(t, b.State().Resent, "something failed")
}

// lastStored returns the order in which messages were stored for the last time.
func lastStored(stored storedOrder) (order storedOrder) {
	seen := map[int]bool{}
	for _, n := range slices.Backward(stored) {
		if !seen[n] {
			seen[n] = true
			order = append(order, n)
		}
	}
	slices.Reverse(order)
	return order
}
