package schedule

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// message is an item of the tests.
type message struct {
	Item

	name string
}

const reclaimAfter = 10 * time.Millisecond

func newScheduler(workers, count int, bytes int64) *Scheduler {
	return New(Config{Workers: workers, MaxCount: count, MaxBytes: bytes, HeldCount: 100, HeldBytes: 1 << 20})
}

// messages are named by their key and their index. Those without a key are ordered against nothing.
func messages(g *Group, keys ...string) []*Item {
	items := make([]*Item, len(keys))
	for i, key := range keys {
		m := &message{name: key + strconv.Itoa(i)}
		m.Item = Item{QueueKey: key, Ordered: key != "", Size: 100, Group: g, Owner: m}
		items[i] = &m.Item
	}
	return items
}

// takeAll claims the items that the scheduler gives a worker now, without waiting.
func takeAll(t *testing.T, s *Scheduler, w *Worker) []*Item {
	t.Helper()
	s.mu.Lock()
	s.endFinished(w, nil)
	got := s.fill(w)
	s.mu.Unlock()
	var items []*Item
	for got {
		it := w.Claim()
		if it == nil {
			break
		}
		items = append(items, it)
	}
	return items
}

func names(items ...*Item) []string {
	var n []string
	for _, it := range items {
		m, _ := it.Owner.(*message)
		n = append(n, m.name)
	}
	return n
}

func TestKeyIsHandedOutOnceAtATime(t *testing.T) {
	s := newScheduler(4, 100, 1<<20)
	sess := new(Group)
	s.Push(messages(sess, "a", "a", "b", "", "", "a"))
	ws := []*Worker{{}, {}, {}, {}, {}}
	var got []*Item
	for _, w := range ws {
		got = append(got, takeAll(t, s, w)...)
	}
	// Those without a key are ordered against nothing; a and b give one each.
	require.ElementsMatch(t, []string{"a0", "b2", "3", "4"}, names(got...))

	i := slices.IndexFunc(ws, func(w *Worker) bool { return w.chunk.items[0] != nil && w.chunk.items[0].QueueKey == "a" })
	ws[i].Finish(ws[i].chunk.items[0])
	require.Equal(t, []string{"a1"}, names(takeAll(t, s, ws[i])...), "the next of the key")
	ws[i].Finish(ws[i].chunk.items[0])
	require.Equal(t, []string{"a5"}, names(takeAll(t, s, ws[i])...))
	for _, w := range ws {
		if d := w.chunk.items[0]; d != nil {
			w.Finish(d)
		}
		takeAll(t, s, w)
	}
	require.Len(t, s.keys, s.empty, "queues of keys with nothing unfinished")
	require.Zero(t, s.count)
	require.Zero(t, s.bytes)
	require.Zero(t, sess.unfinished)
	require.Nil(t, s.unfinished.Head())
}

func TestHeldKeyOccupiesNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(1, 100, 1<<20)
		sess := new(Group)
		s.Push(messages(sess, "a", "a", "b"))
		w := &Worker{}
		require.True(t, s.Next(w, 0, 0))
		a := w.Claim()
		require.Equal(t, "a0", names(a)[0])
		s.GiveBack(w)
		s.Hold(a, time.Now().Add(time.Minute), false)

		require.Equal(t, []string{"b2"}, names(takeAll(t, s, w)...), "a is held with all behind it")
		w.Finish(w.chunk.items[0])
		require.Empty(t, takeAll(t, s, w))

		began := time.Now()
		require.True(t, s.Next(w, 0, 0), "waits until a is due")
		require.Equal(t, time.Minute, time.Since(began))
		require.Same(t, a, w.Claim())
		w.Finish(a)
		require.Equal(t, []string{"a1"}, names(takeAll(t, s, w)...))
		s.StopNow()
	})
}

func TestOneKeyIsOneQueue(t *testing.T) {
	s := newScheduler(1, 100, 1<<20)
	s.pace = 0
	sess := new(Group)
	s.Push(messages(sess, "a", "a", "a", "a"))
	w := &Worker{}
	s.mu.Lock()
	require.True(t, s.fill(w))
	s.mu.Unlock()
	first := w.Claim()
	require.Equal(t, "a0", names(first)[0])
	s.GiveBack(w)
	require.Empty(t, takeAll(t, s, &Worker{}), "nothing beside it")
	w.Finish(first)
	var rest []string
	for range 3 {
		got := takeAll(t, s, w)
		rest = append(rest, names(got...)...)
		for _, d := range got {
			w.Finish(d)
		}
	}
	require.Equal(t, []string{"a1", "a2", "a3"}, rest, "given back in its order")
}

func TestPushWaitsForRoom(t *testing.T) {
	for name, s := range map[string]*Scheduler{
		"messages": newScheduler(1, 3, 1<<20),
		"bytes":    newScheduler(1, 1000, 250),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sess := new(Group)
				pushed := false
				go func() {
					s.Push(messages(sess, "", "", ""))
					pushed = true
				}()
				synctest.Wait()
				require.False(t, pushed)
				w := &Worker{}
				require.True(t, s.Next(w, 0, 0))
				for it := w.Claim(); it != nil; it = w.Claim() {
					w.Finish(it)
				}
				require.True(t, s.Next(w, 0, 0))
				synctest.Wait()
				require.True(t, pushed)
				s.StopNow()
			})
		})
	}
}

func TestSlowMessageDoesNotHoldUpItsCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(2, 100, 1<<20)
		s.pace = 0 // quick so far: workers take several at once
		sess := new(Group)
		s.Push(messages(sess, "done", "slow", "c", "d", "done", "f", "g", "h"))
		w := &Worker{}
		require.True(t, s.Next(w, 0, 0))
		require.Equal(t, 4, w.chunk.n)
		w.Finish(w.Claim()) // both of the key "done"
		w.Finish(w.Claim())
		slow := w.Claim()
		require.Equal(t, "slow", slow.QueueKey)
		s.Push(messages(sess, "done", "slow"))
		w.Start(time.Now())
		time.Sleep(reclaimAfter + 1)
		s.Reclaim([]*Worker{w}, time.Now().Add(-reclaimAfter))
		require.Nil(t, w.Claim(), "the rest is gone")
		other := &Worker{}
		var got []string
		for range 8 {
			for _, d := range takeAll(t, s, other) {
				got = append(got, names(d)...)
				other.Finish(d)
			}
		}
		require.ElementsMatch(t, []string{"c2", "d3", "f5", "g6", "h7", "done0"}, got)
		s.StopNow()
	})
}

func TestDropGivesUpWhatHasNotStarted(t *testing.T) {
	for name, ordered := range map[string]bool{"no order": false, "by key": true} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(2, 100, 1<<20)
			one, two := new(Group), new(Group)
			push := func(g *Group, keys ...string) {
				items := messages(g, keys...)
				for _, it := range items {
					it.Ordered = ordered
				}
				s.Push(items)
			}
			push(one, "a", "a", "b")
			push(two, "a", "c")
			w := &Worker{}
			s.mu.Lock()
			require.True(t, s.fill(w))
			s.mu.Unlock()
			running := w.Claim()
			s.GiveBack(w)
			held := takeAll(t, s, &Worker{})[0]
			s.Hold(held, time.Now().Add(time.Hour), false)
			require.Same(t, one, held.Group)

			s.Drop(func(it *Item) bool { return it.Group == one })
			require.Equal(t, 1, one.unfinished, "what runs goes on")
			require.Equal(t, 2, two.unfinished)
			require.Empty(t, s.held)
			w.Finish(running)
			var rest []string
			for range 3 {
				for _, it := range takeAll(t, s, w) {
					rest = append(rest, names(it)...)
					w.Finish(it)
				}
			}
			require.ElementsMatch(t, []string{"a0", "c1"}, rest)
			require.Zero(t, one.unfinished)
			require.Zero(t, s.heldCount)
			require.Zero(t, s.heldBytes)
			s.StopNow()
		})
	}
}

func TestStopWaitsForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(1, 100, 1<<20)
		sess := new(Group)
		s.Push(messages(sess, "", ""))
		w := &Worker{}
		require.True(t, s.Next(w, 0, 0))
		it := w.Claim()
		s.GiveBack(w)
		s.StartCopy()
		s.Stop(func(*Item) bool { return true })
		require.Equal(t, 1, sess.unfinished, "what has not started is dropped")
		time.AfterFunc(time.Second, func() { s.Resume(it) })
		require.True(t, s.Next(w, 0, 0))
		require.Same(t, it, w.Claim())
		w.Finish(it)
		require.False(t, s.Next(w, 0, 0))
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

func TestWhatIsHeldLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Workers: 2, MaxCount: 2, MaxBytes: 1 << 20, HeldCount: 3, HeldBytes: 1 << 20})
		g := new(Group)
		w := &Worker{}
		push := func(keys ...string) *bool {
			done := new(bool)
			go func() {
				s.Push(messages(g, keys...))
				*done = true
			}()
			synctest.Wait()
			return done
		}
		require.True(t, *push("bad"))
		require.True(t, s.Next(w, 0, 0))
		bad := w.Claim()
		require.True(t, s.Hold(bad, time.Now().Add(time.Hour), false))
		behind := push("bad", "bad")
		require.True(t, *behind, "those behind a held one count as held")
		require.Empty(t, takeAll(t, s, w))
		more := push("good", "good")
		require.False(t, *more, "others fill the bounds as usual")
		w2 := &Worker{}
		require.Equal(t, []string{"good0"}, names(takeAll(t, s, w2)...))
		w2.Finish(w2.chunk.items[0])
		require.Equal(t, []string{"good1"}, names(takeAll(t, s, w2)...))
		w2.Finish(w2.chunk.items[0])
		require.Empty(t, takeAll(t, s, w2))
		s.EndFinished(w2)
		synctest.Wait()
		require.True(t, *more)

		beyond := push("bad", "bad")
		require.False(t, *beyond, "what is held beyond its bounds counts")
		began := time.Now()
		require.True(t, s.Next(w, 0, 0))
		require.Equal(t, time.Hour, time.Since(began))
		require.Same(t, bad, w.Claim())
		s.StopNow()
		synctest.Wait()
		require.True(t, *beyond)
	})
}

func TestAnItemThatIsNotDueKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(1, 100, 1<<20)
		items := messages(new(Group), "a", "a", "b")
		items[0].Due = time.Now().Add(time.Minute)
		s.Push(items)
		w := &Worker{}
		require.Equal(t, []string{"b2"}, names(takeAll(t, s, w)...))
		w.Finish(w.chunk.items[0])
		began := time.Now()
		require.True(t, s.Next(w, 0, 0))
		require.Equal(t, time.Minute, time.Since(began))
		require.Same(t, items[0], w.Claim())
		w.Finish(items[0])
		require.Equal(t, []string{"a1"}, names(takeAll(t, s, w)...))
		s.StopNow()
	})
}

func TestAnItemThatIsNotDueStaysBehindThoseInFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(1, 100, 1<<20)
		items := messages(new(Group), "a", "a", "b", "c")
		items[1].Due = time.Now().Add(10 * time.Millisecond)
		s.Push(items)
		w := &Worker{}
		require.True(t, s.Next(w, 0, 0))
		first := w.Claim()
		s.GiveBack(w)
		s.Hold(first, time.Now().Add(time.Second), false)
		var order []string
		for len(order) < 4 {
			require.True(t, s.Next(w, 0, 0))
			for it := w.Claim(); it != nil; it = w.Claim() {
				order = append(order, names(it)...)
				w.Finish(it)
			}
		}
		s.StopNow()
		require.Equal(t, []string{"a0", "a1"}, order[2:])
	})
}

// TestQueuesOfManyKeysAreGivenUp: the memory for keys without unfinished messages is bounded.
func TestQueuesOfManyKeysAreGivenUp(t *testing.T) {
	s, w, sess := newScheduler(1, 10, 1<<20), new(Worker), new(Group)
	for i := range 3 * keptEmpty {
		s.Push(messages(sess, "k"+strconv.Itoa(i)+"-"))
		for _, it := range takeAll(t, s, w) {
			w.Finish(it)
		}
		require.LessOrEqual(t, len(s.keys), keptEmpty+2)
		require.LessOrEqual(t, s.empty, len(s.keys))
	}
	s.EndFinished(w)
	require.Zero(t, s.count)
	s.Push(messages(sess, "k1-"))
	s.Drop(func(*Item) bool { return true })
	require.Len(t, s.keys, s.empty)
}

// A worker that has claimed nothing when all was taken away is at nothing.
func TestLatestOfNothingClaimed(t *testing.T) {
	var w Worker
	w.chunk.add(new(Item))
	w.chunk.add(new(Item))
	require.Len(t, w.chunk.rest(), 2)
	require.Nil(t, w.chunk.latest())
}
