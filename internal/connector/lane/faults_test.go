package lane

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

// TestOnlyWhatTheSinkStoredIsSentAgain: a failure does not send what a filter or the loop check kept out, nor what is
// a dead letter.
func TestOnlyWhatTheSinkStoredIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{}, func(r *Route) {
			r.Prepare = prepared(func(m *message.Message) (string, bool, error) {
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
		b.sink.now = func(_ int, s sent) bool { s.done(nil); return true }
		b.sink.call(0).done(errors.New("away"))
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, []string{"0", "4", "5", "0", "4"}, b.sink.values())
		for n := range b.sink.calls {
			assert.Equal(t, "to", b.sink.call(n).to)
		}
		assert.Equal(t, []string{"3: no value", "5: too large"}, b.dead)
		assert.Equal(t, []int64{5}, b.committed()[len(b.committed())-1:])
	})
}

// fate is what becomes of a message in TestFailuresWithAllThatGoesElsewhere.
type fate int

const (
	passes fate = iota
	isFiltered
	isLooped
	isRefusedHere  // by the route's own rules
	isRefusedThere // by the sink
	fates
)

// world is a source, a sink and a dead-letter sink in memory, which fail at random, and what must be true of them. Every
// lane that it opens begins behind the last commit. What mu guards is read with mu held also between lanes: synctest.Wait
// orders nothing behind a goroutine that has ended.
type world struct {
	t     *testing.T
	fates []fate
	tos   []string

	mu        sync.Mutex
	rand      *rand.Rand
	away      time.Time      // until then the sink stores nothing
	deadAway  time.Time      // and the other neither
	stored    map[string]log // by destination
	dead      log
	committed int64
	heard     bool        // commits do not fail any more
	life      int         // counts lanes
	letters   map[int]int // message -> life in which its dead letter was stored
}

// log is what was stored, in the order of storing.
type log []int

func (w *world) chance(percent int) bool { return w.rand.IntN(100) < percent }

// somewhere is a place before the source's end.
func (w *world) somewhere() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.IntN(len(w.fates))
}

// Prepare is the route's: its answer is the message's fate.
func (w *world) prepare(_ context.Context, m *message.Message) (string, bool, error) {
	n, err := strconv.Atoi(string(m.Value))
	assert.NoError(w.t, err)
	switch w.fates[n] {
	case isFiltered:
		return "", false, nil
	case isLooped:
		return "", false, ErrLoop
	case isRefusedHere:
		return "", false, Refuse("template", errors.New("no value"))
	default:
		return w.tos[n], true, nil
	}
}

// outcome gives an outcome at once or later.
func (w *world) outcome(done func(error), err error) {
	if w.chance(30) {
		done(err)
		return
	}
	delay := time.Duration(w.rand.IntN(20)) * time.Millisecond
	go func() {
		time.Sleep(delay)
		done(err)
	}()
}

// Send is the sink's.
func (w *world) Send(_ context.Context, to string, m *message.Message, done func(error)) {
	n, err := strconv.Atoi(string(m.Value))
	assert.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if assert.Contains(w.t, []fate{passes, isRefusedThere}, w.fates[n], "%d must never reach the sink", n) {
		assert.Equal(w.t, w.tos[n], to)
	}
	if life, there := w.letters[n]; there {
		assert.NotEqual(w.t, w.life, life, "%d is a dead letter already", n)
	}
	failed := errors.New("away")
	switch {
	case time.Now().Before(w.away):
		w.outcome(done, failed)
	case w.chance(1):
		w.away = time.Now().Add(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
		w.outcome(done, failed)
	case w.fates[n] == isRefusedThere:
		w.outcome(done, Refuse("too_large", errors.New("too large")))
	default:
		w.stored[to] = append(w.stored[to], n)
		if w.chance(2) {
			w.outcome(done, errors.New("stored, but nobody heard of it"))
		} else {
			w.outcome(done, nil)
		}
	}
}

// storeDeadLetter is the other sink's.
func (w *world) storeDeadLetter(_ context.Context, _ string, m *message.Message, _ error, done func(error)) {
	n, err := strconv.Atoi(string(m.Value))
	assert.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Contains(w.t, []fate{isRefusedHere, isRefusedThere}, w.fates[n], "%d was not refused", n)
	if time.Now().Before(w.deadAway) || w.chance(10) {
		if w.chance(10) {
			w.deadAway = time.Now().Add(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
		}
		w.outcome(done, errors.New("away"))
		return
	}
	if life, there := w.letters[n]; there {
		assert.NotEqual(w.t, w.life, life, "%d is stored once by one lane", n)
	}
	w.dead = append(w.dead, n)
	w.letters[n] = w.life
	w.outcome(done, nil)
}

// commit is the source's: everything up to position is done with.
func (w *world) commit(position int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Greater(w.t, position, w.committed)
	for n := w.committed + 1; n <= position; n++ {
		switch w.fates[n] {
		case passes:
			assert.Contains(w.t, w.stored[w.tos[n]], int(n), "committed and not stored")
		case isRefusedHere, isRefusedThere:
			assert.Contains(w.t, w.dead, int(n), "committed and no dead letter")
		}
	}
	if !w.heard && w.chance(10) {
		return errors.New("away")
	}
	w.committed = position
	return nil
}

// live opens a lane, offers it everything behind the last commit, and ends it: at the end of the source, or anywhere before.
func (w *world) live(s *Set, end int) {
	w.mu.Lock()
	w.life++
	from := int(w.committed) + 1
	w.heard = end == len(w.fates)
	abandon := w.chance(50)
	w.mu.Unlock()
	l := s.Open("lane", w.commit, CommitEach(16))
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
	synctest.Wait() // a process that ends has ended before the next begins
	time.Sleep(time.Second)
}

// TestFailuresWithAllThatGoesElsewhere: a sink and a dead-letter sink that fail at random and come back, and lanes that end
// at random, with filters, loops, refusals and two destinations. AVIARY_LANE_SEED repeats a run.
func TestFailuresWithAllThatGoesElsewhere(t *testing.T) {
	seeds := []uint64{rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()}
	if text := os.Getenv("AVIARY_LANE_SEED"); text != "" {
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
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 0)), stored: map[string]log{}, letters: map[int]int{}, committed: -1}
	for range messages {
		f := passes
		if w.chance(40) {
			f = fate(w.rand.IntN(int(fates)))
		}
		w.fates = append(w.fates, f)
		w.tos = append(w.tos, []string{"one", "other"}[w.rand.IntN(2)])
	}
	b := newBench(t, Config{Messages: 1 + w.rand.IntN(200)}, func(r *Route) {
		r.Sink, r.Dead = w, w.storeDeadLetter
		r.Prepare = func() (Prepare, func()) { return w.prepare, nil }
	})
	for range 5 {
		w.live(b.Set, w.somewhere())
	}
	w.live(b.Set, messages)
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.EqualValues(t, messages-1, w.committed)
	for to, stored := range w.stored {
		var want log
		for n := range messages {
			if w.fates[n] == passes && w.tos[n] == to {
				want = append(want, n)
			}
		}
		assert.Equal(t, want, latest(stored), "each is stored, and everything behind it after it")
	}
	var want log
	for n := range messages {
		if w.fates[n] == isRefusedHere || w.fates[n] == isRefusedThere {
			want = append(want, n)
		}
	}
	dead := slices.Clone(w.dead)
	slices.Sort(dead)
	assert.Equal(t, want, slices.Compact(dead))
	assert.Positive(t, b.State().Resent, "something failed")
}

// latest is the order in which messages were stored for the last time.
func latest(stored log) (order log) {
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
