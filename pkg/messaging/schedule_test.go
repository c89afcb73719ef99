package messaging

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func newTestSession(s *scheduler) *session { return &session{wake: s.wake} }

func tasks(sess *session, keys ...string) []*task {
	ts := make([]*task, len(keys))
	for i, k := range keys {
		ts[i] = &task{Delivery: Delivery{Key: k, Payload: []byte(strconv.Itoa(i))}, session: sess, key: k, size: 100, heldAt: -1}
	}
	return ts
}

// takeAll claims what the scheduler gives a worker now, without waiting.
func takeAll(t *testing.T, s *scheduler, w *worker) []*task {
	t.Helper()
	s.mu.Lock()
	s.endDone(w)
	got := s.fill(w)
	s.mu.Unlock()
	var ts []*task
	for got {
		d := w.chunk.claim()
		if d == nil {
			break
		}
		ts = append(ts, d)
	}
	return ts
}

func names(ts []*task) []string {
	var n []string
	for _, d := range ts {
		n = append(n, d.Key+string(d.Payload))
	}
	return n
}

func TestKeyIsHandedOutOnceAtATime(t *testing.T) {
	s := newScheduler(OrderKey, 4, 100, 1<<20)
	sess := newTestSession(s)
	s.push(tasks(sess, "a", "a", "b", "", "", "a"))
	ws := []*worker{{}, {}, {}, {}, {}}
	var got []*task
	for _, w := range ws {
		got = append(got, takeAll(t, s, w)...)
	}
	// Those without a key are ordered against nothing; a and b give one each.
	require.ElementsMatch(t, []string{"a0", "b2", "3", "4"}, names(got))

	i := slices.IndexFunc(ws, func(w *worker) bool { return w.chunk.items[0] != nil && w.chunk.items[0].Key == "a" })
	ws[i].finish(ws[i].chunk.items[0])
	require.Equal(t, []string{"a1"}, names(takeAll(t, s, ws[i])), "the next of the key")
	ws[i].finish(ws[i].chunk.items[0])
	require.Equal(t, []string{"a5"}, names(takeAll(t, s, ws[i])))
	for _, w := range ws {
		if d := w.chunk.items[0]; d != nil {
			w.finish(d)
		}
		takeAll(t, s, w)
	}
	require.Empty(t, s.lanes, "lanes exist for keys with something unfinished only")
	require.Zero(t, s.count)
	require.Zero(t, s.bytes)
	require.Zero(t, sess.unfinished)
	require.Nil(t, s.unfinished.head)
}

func TestHeldKeyOccupiesNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(OrderKey, 1, 100, 1<<20)
		sess := newTestSession(s)
		s.push(tasks(sess, "a", "a", "b"))
		w := &worker{}
		require.True(t, s.next(w, 0, 0))
		a := w.chunk.claim()
		require.Equal(t, "a0", names([]*task{a})[0])
		s.giveBack(w.chunk.rest())
		s.hold(a, time.Now().Add(time.Minute))

		require.Equal(t, []string{"b2"}, names(takeAll(t, s, w)), "a is held with all behind it")
		w.finish(w.chunk.items[0])
		require.Empty(t, takeAll(t, s, w))

		began := time.Now()
		require.True(t, s.next(w, 0, 0), "waits until a is due")
		require.Equal(t, time.Minute, time.Since(began))
		require.Same(t, a, w.chunk.claim())
		w.finish(a)
		require.Equal(t, []string{"a1"}, names(takeAll(t, s, w)))
		s.abandon()
	})
}

func TestTotalOrderIsOneLane(t *testing.T) {
	s := newScheduler(OrderTotal, 1, 100, 1<<20)
	s.pace = 0
	sess := newTestSession(s)
	s.push(tasks(sess, "a", "b", "", "c"))
	w := &worker{}
	s.mu.Lock()
	require.True(t, s.fill(w))
	s.mu.Unlock()
	first := w.chunk.claim()
	require.Equal(t, "a0", names([]*task{first})[0])
	s.giveBack(w.chunk.rest())
	require.Empty(t, takeAll(t, s, &worker{}), "nothing beside it")
	w.finish(first)
	var rest []string
	for range 3 {
		got := takeAll(t, s, w)
		rest = append(rest, names(got)...)
		for _, d := range got {
			w.finish(d)
		}
	}
	require.Equal(t, []string{"b1", "2", "c3"}, rest, "given back in its order")
}

func TestPushWaitsForRoom(t *testing.T) {
	for name, s := range map[string]*scheduler{
		"messages": newScheduler(OrderNone, 1, 3, 1<<20),
		"bytes":    newScheduler(OrderNone, 1, 1000, 250),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sess := newTestSession(s)
				pushed := false
				go func() {
					s.push(tasks(sess, "", "", ""))
					pushed = true
				}()
				synctest.Wait()
				require.False(t, pushed)
				w := &worker{}
				require.True(t, s.next(w, 0, 0))
				for d := w.chunk.claim(); d != nil; d = w.chunk.claim() {
					w.finish(d)
				}
				require.True(t, s.next(w, 0, 0))
				synctest.Wait()
				require.True(t, pushed)
				s.abandon()
			})
		})
	}
}

func TestSlowMessageDoesNotHoldUpItsCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(OrderKey, 2, 100, 1<<20)
		s.pace = 0 // quick so far: workers take several at once
		sess := newTestSession(s)
		s.push(tasks(sess, "done", "slow", "c", "d", "done", "f", "g", "h"))
		w := &worker{}
		require.True(t, s.next(w, 0, 0))
		require.Equal(t, 4, w.chunk.n)
		w.finish(w.chunk.claim()) // both of the key "done"
		w.finish(w.chunk.claim())
		slow := w.chunk.claim()
		require.Equal(t, "slow", slow.Key)
		s.push(tasks(sess, "done", "slow"))
		w.busy.set(slow, time.Now())
		time.Sleep(stealAfter + 1)
		s.steal([]*worker{w}, time.Now().Add(-stealAfter))
		require.Nil(t, w.chunk.claim(), "the rest is gone")
		other := &worker{}
		var got []string
		for range 8 {
			for _, d := range takeAll(t, s, other) {
				got = append(got, names([]*task{d})...)
				other.finish(d)
			}
		}
		require.ElementsMatch(t, []string{"c2", "d3", "f5", "g6", "h7", "done0"}, got)
		s.abandon()
	})
}

func TestDropGivesUpWhatHasNotStarted(t *testing.T) {
	for _, order := range []Order{OrderNone, OrderKey} {
		s := newScheduler(order, 2, 100, 1<<20)
		one, two := newTestSession(s), newTestSession(s)
		s.push(tasks(one, "a", "a", "b"))
		s.push(tasks(two, "a", "c"))
		w := &worker{}
		s.mu.Lock()
		require.True(t, s.fill(w))
		s.mu.Unlock()
		running := w.chunk.claim()
		s.giveBack(w.chunk.rest())
		held := takeAll(t, s, &worker{})[0]
		s.hold(held, time.Now().Add(time.Hour))
		require.Same(t, one, held.session)

		s.drop(func(d *task) bool { return d.session == one })
		require.Equal(t, 1, one.unfinished, "what runs goes on")
		require.Equal(t, 2, two.unfinished)
		require.Empty(t, s.held)
		w.finish(running)
		var rest []string
		for range 3 {
			for _, d := range takeAll(t, s, w) {
				rest = append(rest, names([]*task{d})...)
				w.finish(d)
			}
		}
		require.ElementsMatch(t, []string{"a0", "c1"}, rest)
		require.Zero(t, one.unfinished)
		s.abandon()
	}
}

func TestStopWaitsForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(OrderNone, 1, 100, 1<<20)
		sess := newTestSession(s)
		s.push(tasks(sess, "", ""))
		w := &worker{}
		require.True(t, s.next(w, 0, 0))
		d := w.chunk.claim()
		s.giveBack(w.chunk.rest())
		d.copying = &copyJob{stored: true}
		s.startCopy()
		s.stop()
		require.Equal(t, 1, sess.unfinished, "what has not started is dropped")
		time.AfterFunc(time.Second, func() { s.resume(d) })
		require.True(t, s.next(w, 0, 0))
		require.Same(t, d, w.chunk.claim())
		w.finish(d)
		require.False(t, s.next(w, 0, 0))
		require.Zero(t, sess.unfinished)
	})
}

func TestQueue(t *testing.T) {
	var q queue[int]
	var want []int
	for i := range 2000 {
		switch {
		case i%7 == 3 && len(want) > 0:
			require.Equal(t, want[0], q.pop())
			want = want[1:]
		case i%5 == 1:
			q.pushFront(i)
			want = append([]int{i}, want...)
		default:
			q.push(i)
			want = append(want, i)
		}
		require.Equal(t, len(want), q.len())
	}
	q.filter(func(i int) bool { return i%2 == 0 })
	want = slices.DeleteFunc(want, func(i int) bool { return i%2 != 0 })
	for _, w := range want {
		require.Equal(t, w, q.pop())
	}
	require.Zero(t, q.len())
}
